"""Positions and values: written and read back exactly, cut to exactly k, put on a weight, added up; and the gates."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adaptree.core import sparse


def some(n: int, density: float, seed: int = 0) -> Tensor:
    """Rising positions of about that density among n."""
    rng = np.random.default_rng(seed)
    k = max(1, round(n * density))
    return torch.from_numpy(np.sort(rng.choice(n, k, replace=False)))


@given(st.sets(st.integers(0, 2**40)))
def test_positions_are_read_back_as_they_were_written(chosen: set[int]) -> None:
    positions = torch.tensor(sorted(chosen), dtype=torch.int64)
    code = sparse.encode(positions)
    assert code.dtype == torch.uint8
    assert torch.equal(sparse.decode(code), positions)


@pytest.mark.parametrize("gap", [0, 1, 126, 127, 128, 129, 2**14 - 1, 2**14, 2**14 + 1, 2**21, 2**35 - 1, 2**35])
def test_gaps_around_the_ends_of_a_byte_are_exact(gap: int) -> None:
    positions = torch.tensor([gap, gap + 1, 2 * gap + 2, 2 * gap + 3])
    assert torch.equal(sparse.decode(sparse.encode(positions)), positions)


@pytest.mark.parametrize("density", [1e-6, 1e-4, 1e-3, 0.005, 0.1, 0.5, 1.0])
def test_every_density_is_read_back_and_small(density: float) -> None:
    positions = some(2_000_000, density)
    code = sparse.encode(positions)
    assert torch.equal(sparse.decode(code), positions)
    each = len(code) / len(positions)
    assert each == 1 if density == 1 else each < 3.1
    if density >= 1e-3:
        assert 4 + each <= 6, "with its fp32 value a weight takes six bytes at most"


def test_the_empty_and_the_full_set() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert len(sparse.encode(none)) == 0
    assert torch.equal(sparse.decode(sparse.encode(none)), none)
    whole = torch.arange(1000)
    assert not sparse.encode(whole).any()
    assert torch.equal(sparse.decode(sparse.encode(whole)), whole)


@pytest.mark.parametrize("positions", [[3, 3], [4, 2], [-1, 5]])
def test_positions_that_do_not_rise_are_refused(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        sparse.encode(torch.tensor(positions))


def test_a_code_that_was_cut_off_is_refused() -> None:
    code = sparse.encode(torch.tensor([5, 100_000]))
    for length in range(2, len(code)):
        with pytest.raises(ValueError, match="cut off"):
            sparse.decode(code[:length])


def test_decoding_half_a_per_cent_of_minilm_takes_little_time() -> None:
    code = sparse.encode(some(22_713_216, 0.005))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        sparse.decode(code)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.data())
def test_the_largest_are_exactly_k_and_of_equal_ones_the_first(scores: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    expected = sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k])
    assert sparse.largest(torch.tensor(scores, dtype=torch.float32), k).tolist() == expected


@pytest.mark.parametrize("k", [0, 4])
def test_a_cut_that_cannot_be_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        sparse.largest(torch.ones(3), k)


def test_delta_is_put_on_a_weight_which_stays_as_it_is() -> None:
    weight = torch.randn(4, 5)
    before = weight.clone()
    at, values = torch.tensor([0, 7, 19]), torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    moved = sparse.put(weight, at, values)
    dense = torch.zeros(20)
    dense[at] = values.detach()
    assert torch.equal(moved, weight + dense.view(4, 5))
    assert torch.equal(weight, before)
    towards = torch.randn(4, 5)
    (moved * towards).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, towards.flatten()[at])


def written_gate(alpha: float, u: float) -> float:
    """Guo et al. 2021, §3.1, with l = -1.5 and r = 1.5."""
    s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + alpha)))
    return min(1.0, max(0.0, s * 3.0 - 1.5))


@pytest.mark.parametrize("alpha", [-4.0, -0.5, 0.0, 0.7, 1.3, 5.0])
def test_gates_are_the_papers(alpha: float) -> None:
    for u in (0.01, 0.3, 0.5, 0.8, 0.999):
        noise = torch.tensor(math.log(u / (1 - u)))
        assert float(sparse.gate(torch.tensor(alpha), noise)) == pytest.approx(written_gate(alpha, u), abs=1e-6)
    assert float(sparse.gate(torch.tensor(alpha))) == pytest.approx(written_gate(alpha, 0.5), abs=1e-6)


@pytest.mark.parametrize("alpha", [-3.0, -1.0, 0.0, 1.0, 4.0])
def test_the_chance_of_an_open_gate_is_what_is_drawn(alpha: float) -> None:
    torch.manual_seed(0)
    alphas = torch.full((200_000,), alpha)
    drawn = (sparse.gate(alphas, sparse.noise_like(alphas)) > 0).float().mean()
    assert float(sparse.chance(torch.tensor(alpha))) == pytest.approx(float(drawn), abs=0.004)


def test_a_gate_between_its_ends_passes_gradient_and_a_saturated_one_none() -> None:
    alpha = torch.tensor([-4.0, 0.5, 6.0], requires_grad=True)
    sparse.gate(alpha).sum().backward()
    s = torch.sigmoid(torch.tensor(0.5))
    assert alpha.grad is not None
    torch.testing.assert_close(alpha.grad, torch.tensor([0.0, float(3 * s * (1 - s)), 0.0]))
