"""y + scale · x A B, with one task's weights or a task's for each row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptree.core import lora

sizes = st.integers(1, 9)


def made(inputs: int, outputs: int, rank: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    A, B = torch.randn(inputs, rank, generator=generator), torch.randn(rank, outputs, generator=generator)
    return {"A": A.double(), "B": B.double()}


@given(sizes, sizes, sizes, st.floats(0.1, 8))
def test_it_is_the_linear_map_of_the_sum_of_weights(inputs: int, outputs: int, rank: int, scale: float) -> None:
    p = made(inputs, outputs, rank)
    W = torch.randn(inputs, outputs, dtype=torch.float64)
    x = torch.randn(2, 3, inputs, dtype=torch.float64)
    torch.testing.assert_close(lora.apply(x, x @ W, p, scale=scale), x @ (W + scale * p["A"] @ p["B"]))


@given(sizes, sizes, sizes)
def test_birth_is_the_very_map_and_has_the_counted_size(inputs: int, outputs: int, rank: int) -> None:
    p = lora.init(inputs, outputs, rank, generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(2, 3, inputs), torch.randn(2, 3, outputs)
    assert torch.equal(lora.apply(x, y, p, scale=2.0), y)
    assert sum(t.numel() for t in p.values()) == lora.count(inputs, outputs, rank)
    assert (p["A"] != 0).all()


def test_a_is_born_gaussian_with_the_variance_of_the_authors_code() -> None:
    A = lora.init(300, 5, 200, generator=torch.Generator().manual_seed(0))["A"]
    authors = torch.nn.init.kaiming_uniform_(torch.empty(200, 300), a=5**0.5)
    assert A.std().item() == pytest.approx(1 / 30, rel=0.02)
    assert authors.std().item() == pytest.approx(1 / 30, rel=0.02)
    assert (A / A.std()).pow(4).mean().item() == pytest.approx(3, abs=0.15)  # a Gaussian's; a uniform has 1.8


def test_rows_with_weights_of_their_own_equal_one_by_one() -> None:
    tasks = [made(4, 6, 3, seed) for seed in (0, 1)]
    x, y = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, 6, dtype=torch.float64)
    owners = [1, 0, 1]
    stacked = {key: torch.stack([tasks[owner][key] for owner in owners]) for key in "AB"}
    mixed = lora.apply(x, y, stacked, scale=0.5)
    for i, owner in enumerate(owners):
        torch.testing.assert_close(mixed[i], lora.apply(x[i], y[i], tasks[owner], scale=0.5))


def test_dropout_drops_parts_of_the_input_and_keeps_its_mean() -> None:
    p = {"A": torch.eye(4), "B": torch.eye(4)}
    x, y = torch.ones(100, 50, 4), torch.zeros(100, 50, 4)
    out = lora.apply(x, y, p, scale=1.0, dropout=0.25)
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.03)
