"""NICE coupling: MAD-X's equations, their inverse, and the number of weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptree.core import invertible


def weights(d: int, std: float, seed: int) -> dict[str, Tensor]:
    """Anywhere that training may have brought them, biases included."""
    generator = torch.Generator().manual_seed(seed)
    born = invertible.init(d, std=0.01, generator=generator, dtype=torch.float32)
    return {key: std * torch.randn(t.shape, generator=generator) for key, t in born.items()}


def states(d: int, scale: float, seed: int) -> Tensor:
    return scale * torch.randn((3, 4, d), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(
    half=st.integers(1, 40),
    std=st.floats(0, 0.5),
    scale=st.floats(0.01, 3),
    seed=st.integers(0, 10_000),
)
def test_the_inverse_gives_back_what_went_in(half: int, std: float, scale: float, seed: int) -> None:
    p, e = weights(2 * half, std, seed), states(2 * half, scale, seed + 1)
    o = invertible.apply(e, p)
    limit = 1e-5 * max(1.0, float(o.abs().max()), float(e.abs().max()))
    assert float((invertible.invert(o, p) - e).abs().max()) < limit
    assert float((invertible.apply(invertible.invert(e, p), p) - e).abs().max()) < 1e-5 * max(
        1.0, float(invertible.invert(e, p).abs().max())
    )


def test_it_is_what_the_paper_writes() -> None:
    p, e = weights(12, 0.4, 0), states(12, 1.0, 1)

    def bottleneck(name: str, x: Tensor) -> Tensor:
        inner = torch.clamp(x @ p[f"{name}.down"] + p[f"{name}.down_bias"], min=0)
        return inner @ p[f"{name}.up"] + p[f"{name}.up_bias"]

    e1, e2 = e[..., :6], e[..., 6:]
    o1 = bottleneck("f", e2) + e1
    o2 = bottleneck("g", o1) + e2
    expected = torch.cat([o1, o2], -1)
    torch.testing.assert_close(invertible.apply(e, p), expected, rtol=1e-6, atol=1e-6)
    assert (expected - e).abs().max() > 0.1


def test_it_is_near_the_identity_at_birth_and_exactly_so_with_zeros() -> None:
    e = states(16, 1.0, 2)
    born = invertible.init(16, std=0.01, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    assert 0 < float((invertible.apply(e, born) - e).abs().max()) < 1e-2
    nothing = {key: torch.zeros_like(t) for key, t in born.items()}
    assert torch.equal(invertible.apply(e, nothing), e)


@pytest.mark.parametrize("d", [2, 6, 32, 384])
def test_the_count_is_that_of_the_weights(d: int) -> None:
    born = invertible.init(d, std=0.01, generator=None, dtype=torch.float32)
    assert invertible.count(d) == sum(t.numel() for t in born.values())


def test_the_maps_are_a_quarter_of_the_width_inside() -> None:
    born = invertible.init(32, std=0.01, generator=None, dtype=torch.float32)
    assert tuple(born["f.down"].shape) == tuple(born["g.down"].shape) == (16, 8)
    assert invertible.count(384) == 384 * 384 // 2 + 3 * 384 // 2


def test_a_width_without_halves_is_refused() -> None:
    with pytest.raises(ValueError, match="a width of 7 has no halves"):
        invertible.init(7, std=0.01, generator=None, dtype=torch.float32)


def test_stacked_weights_of_several_tasks_act_row_by_row() -> None:
    tasks, e = [weights(12, 0.4, seed) for seed in range(3)], states(12, 1.0, 1)
    stacked = {key: torch.stack([p[key] for p in tasks]) for key in tasks[0]}
    one_by_one = torch.stack([invertible.apply(e[i], p) for i, p in enumerate(tasks)])
    torch.testing.assert_close(invertible.apply(e, stacked), one_by_one, rtol=1e-6, atol=1e-6)
