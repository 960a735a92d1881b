from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adaptree.core import bottleneck

BY_HAND: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(x, 0.0),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def weights(d: int, m: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights and biases of a size that shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"down": (d, m), "down_bias": (1, m), "up": (m, d), "up_bias": (1, d)}
    return {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def by_hand(h: Tensor, p: dict[str, Tensor], activation: str) -> Tensor:
    """Houlsby et al., §2.1, one number at a time."""
    act = BY_HAND[activation]
    d, m = p["down"].shape
    down, down_bias, up, up_bias = (p[name].tolist() for name in ("down", "down_bias", "up", "up_bias"))
    out = torch.empty(h.shape)
    for b, t in ((b, t) for b in range(h.shape[0]) for t in range(h.shape[1])):
        x = h[b, t].tolist()
        z = [act(sum(x[i] * down[i][j] for i in range(d)) + down_bias[0][j]) for j in range(m)]
        for i in range(d):
            out[b, t, i] = x[i] + sum(z[j] * up[j][i] for j in range(m)) + up_bias[0][i]
    return out


def test_every_activation_is_tried() -> None:
    assert set(BY_HAND) == set(bottleneck.ACTIVATIONS)


@pytest.mark.parametrize("activation", BY_HAND)
def test_apply_is_the_papers_formula(activation: str) -> None:
    h, p = torch.randn(2, 3, 5), weights(5, 4)
    torch.testing.assert_close(bottleneck.apply(h, p, activation), by_hand(h, p, activation), atol=2e-6, rtol=0)


def test_gelu_is_the_default() -> None:
    h, p = torch.randn(2, 3, 5), weights(5, 4)
    assert torch.equal(bottleneck.apply(h, p), bottleneck.apply(h, p, "gelu"))


@given(rows=st.integers(1, 4), tokens=st.integers(1, 4), d=st.integers(1, 6), m=st.integers(1, 6))
def test_stacked_weights_give_each_row_its_own_task(rows: int, tokens: int, d: int, m: int) -> None:
    B, h = rows, torch.randn(rows, tokens, d)
    tasks = [weights(d, m, seed) for seed in range(B)]
    stacked = {name: torch.stack([task[name] for task in tasks]) for name in tasks[0]}
    assert stacked["down_bias"].shape == (B, 1, m)
    out = bottleneck.apply(h, stacked, "tanh")
    assert out.shape == h.shape
    for b in range(B):
        torch.testing.assert_close(out[b], bottleneck.apply(h[b], tasks[b], "tanh"), atol=1e-5, rtol=0)


def test_rows_and_tokens_are_not_mixed_up_when_there_are_as_many_of_both() -> None:
    n, d, m = 4, 4, 4
    h, tasks = torch.randn(n, n, d), [weights(d, m, seed) for seed in range(n)]
    stacked = {name: torch.stack([task[name] for task in tasks]) for name in tasks[0]}
    expected = torch.cat([by_hand(h[b : b + 1], tasks[b], "gelu") for b in range(n)])
    torch.testing.assert_close(bottleneck.apply(h, stacked), expected, atol=2e-6, rtol=0)


def test_a_zero_module_is_the_identity_bit_for_bit() -> None:
    h = torch.randn(3, 4, 16)
    assert torch.equal(bottleneck.apply(h, bottleneck.init(16, 8, std=0.0)), h)
    assert torch.equal(bottleneck.apply(h, bottleneck.init(16, 8) | {"up": torch.zeros(8, 16)}), h)


@given(d=st.integers(1, 40), m=st.integers(1, 40))
def test_count_is_the_formula_and_what_is_born(d: int, m: int) -> None:
    assert bottleneck.count(d, m) == 2 * m * d + d + m
    assert bottleneck.count(d, m) == sum(tensor.numel() for tensor in bottleneck.init(d, m).values())


@pytest.mark.parametrize("std", [1e-2, 1e-3, 0.3])
def test_weights_are_born_truncated_at_two_standard_deviations(std: float) -> None:
    p = bottleneck.init(300, 200, std=std, generator=torch.Generator().manual_seed(0))
    for name in ("down", "up"):
        x = p[name].double()
        assert 1.9 * std < x.abs().max() <= 2 * std * (1 + 1e-6)
        # A Gaussian cut at ±2σ keeps 0.8796 of its standard deviation.
        assert x.std() == pytest.approx(0.8796 * std, rel=0.01)
        assert abs(x.mean()) < 0.02 * std
    assert not p["down_bias"].any()
    assert not p["up_bias"].any()
    assert not torch.equal(p["down"].T, p["up"])


def test_birth_depends_on_the_generator_alone() -> None:
    first, again, other = (bottleneck.init(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["down"], other["down"])


def test_birth_in_another_type_of_number() -> None:
    assert {tensor.dtype for tensor in bottleneck.init(8, 4, dtype=torch.bfloat16).values()} == {torch.bfloat16}
