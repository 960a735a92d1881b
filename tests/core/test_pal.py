"""V^D · MH(V^E · h): against torch's own multi-head attention, with all forms of a mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from adaptree.core import pal

D, S, HEADS, B, T = 10, 6, 3, 4, 5
LENGTHS = torch.tensor([5, 3, 1, 4])
SEEN = torch.arange(T) < LENGTHS[:, None]  # (B, T)


def weights(*, output: bool, bias: bool, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared, own = pal.init(D, S, 1, std=0.02, output=output, bias=bias, generator=generator)
    p = {**shared, **own[0]}
    return {key: torch.randn(t.shape, generator=generator).double() for key, t in p.items()}


def by_torch(h: Tensor, p: dict[str, Tensor], seen: Tensor) -> Tensor:
    attention = nn.MultiheadAttention(S, HEADS, batch_first=True, dtype=torch.float64)
    zero = torch.zeros(S, dtype=torch.float64)
    biases = {key: p.get(f"{key}_bias", zero).reshape(-1) for key in ("query", "key", "value", "output")}
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([p[key].T for key in ("query", "key", "value")]))
        attention.in_proj_bias.copy_(torch.cat([biases[key] for key in ("query", "key", "value")]))
        attention.out_proj.weight.copy_(p["output"].T if "output" in p else torch.eye(S))
        attention.out_proj.bias.copy_(biases["output"])
    z = h @ p["encode"] + p.get("encode_bias", 0.0)
    z, _ = attention(z, z, z, key_padding_mask=~seen)
    out: Tensor = z @ p["decode"] + p.get("decode_bias", 0.0)
    return out


FORMS: dict[str, Tensor] = {
    "bool, one row of keys": SEEN,
    "whole numbers, one row of keys": SEEN.long(),
    "bool, every query": SEEN[:, None].expand(B, T, T),
    "bool": SEEN[:, None, None],
    "whole numbers, padding sees nothing": (SEEN[:, None] & SEEN[:, :, None]).long()[:, None],
    "summand of -inf": torch.zeros(B, 1, 1, T).masked_fill(~SEEN[:, None, None], -math.inf),
    "summand of the least float": torch.zeros(B, 1, T, T).masked_fill(
        ~SEEN[:, None, None], torch.finfo(torch.float32).min
    ),
    "summand, padding sees nothing": torch.zeros(B, 1, T, T).masked_fill(
        ~(SEEN[:, None] & SEEN[:, :, None])[:, None], -math.inf
    ),
}


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_multi_head_attention_between_two_projections(form: str, bias: bool, output: bool) -> None:
    p = weights(output=output, bias=bias)
    h = torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = pal.apply(h, p, HEADS, pal.visible(FORMS[form], h.dtype))
    assert out.isfinite().all()
    torch.testing.assert_close(out[SEEN], by_torch(h, p, SEEN)[SEEN])
    assert not torch.allclose(out[SEEN], pal.apply(h, p, HEADS)[SEEN]), "the mask must show"


def test_without_a_mask_all_is_seen() -> None:
    p, h = weights(output=False, bias=False), torch.randn(B, T, D, dtype=torch.float64)
    assert pal.visible(None, h.dtype) is None
    torch.testing.assert_close(pal.apply(h, p, HEADS), by_torch(h, p, torch.ones_like(SEEN)))


def test_a_summand_in_another_type_of_number_stays_finite() -> None:
    mask = pal.visible(FORMS["summand of the least float"], torch.float16)
    assert mask is not None
    assert mask.dtype == torch.float16
    assert mask.isfinite().all()


def test_rows_with_weights_of_their_own_equal_one_by_one() -> None:
    tasks = [weights(output=True, bias=True, seed=seed) for seed in (0, 1)]
    owners = [0, 1, 1, 0]
    stacked = {key: torch.stack([tasks[owner][key] for owner in owners]) for key in tasks[0]}
    h, mask = torch.randn(B, T, D, dtype=torch.float64), pal.visible(SEEN, torch.float64)
    assert mask is not None
    mixed = pal.apply(h, stacked, HEADS, mask)
    for i, owner in enumerate(owners):
        alone = pal.apply(h[i : i + 1], tasks[owner], HEADS, mask[i : i + 1])
        torch.testing.assert_close(mixed[i : i + 1], alone)


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_born_has_the_counted_size(bias: bool, output: bool) -> None:
    shared, own = pal.init(D, S, 4, std=0.5, output=output, bias=bias)
    assert len(own) == 4
    born = sum(t.numel() for p in (shared, *own) for t in p.values())
    assert born == pal.count(D, S, 4, output=output, bias=bias)


def test_v_d_of_zero_gives_nothing() -> None:
    shared, own = pal.init(D, S, 1, std=0.0, bias=True)
    assert not pal.apply(torch.randn(B, T, D), {**shared, **own[0]}, HEADS).any()
    assert all(t.any() for key, t in {**shared, **own[0]}.items() if key != "decode" and not key.endswith("bias"))
