"""The control of the sparse methods: exactly K weights of the chosen layers, drawn by lot from the seed."""

from __future__ import annotations

import pytest
import torch

from adaptree.core import sparse
from adaptree.methods.lt_sft import RandomTicket
from adaptree.methods.sparse import POSITIONS, VALUES, universe
from adaptree.models.sites import find
from tests import tiny


def drawn(method: RandomTicket, case: str, seed: int) -> torch.Tensor:
    model = tiny.model(case)
    v = method.init(find(model), model, torch.Generator().manual_seed(seed))
    assert not v[VALUES].any()
    at = sparse.decode(v[POSITIONS])
    assert len(at) == len(v[VALUES]) == method.count(find(model), model)["adapters"]
    return at


@pytest.mark.parametrize("case", ["bert", "gpt2", "albert", "t5"])
def test_the_seed_draws_exactly_k_places(case: str) -> None:
    method = RandomTicket(density=0.01)
    total = sum(p.numel() for p in tiny.model(case).parameters())
    one, again, other = (drawn(method, case, seed) for seed in (0, 0, 1))
    assert len(one) == round(0.01 * total)
    assert torch.equal(one, again)
    assert len(set(one.tolist()) & set(other.tolist())) < 0.1 * len(one)


def test_places_lie_evenly_over_the_base() -> None:
    at = drawn(RandomTicket(density=0.2), "bert", 0)
    size = sum(p.numel() for name, p in tiny.model("bert").named_parameters() if not name.startswith("pooler"))
    counts = torch.histc(at.float(), bins=10, min=0, max=size)
    assert (counts / counts.mean() - 1).abs().max() < 0.15


def test_only_the_chosen_layers_are_drawn_from() -> None:
    model = tiny.model("bert")
    sites, frozen = find(model), dict(model.named_parameters())
    at = drawn(RandomTicket(density=0.01, layers="top:1"), "bert", 0)
    owners = [name for name in universe(frozen) for _ in range(frozen[name].numel())]
    assert {sites.layer_of(owners[i]) for i in at.tolist()} == {sites.depth - 1}
