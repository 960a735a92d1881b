"""Diff pruning: gates drawn in training and at rest otherwise, a price for open ones, and an exact cut."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adaptree import api
from adaptree.core import sparse
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.methods.diff_pruning import DiffPruning
from adaptree.methods.sparse import universe
from adaptree.models.fingerprint import fingerprint
from adaptree.models.loading import load_base
from adaptree.models.sites import find
from adaptree.tasks.store import Store
from adaptree.training.distributed import ProcessGroup
from adaptree.training.optimiser import adamw, clip, set_rate
from tests import tiny
from tests.bases import tiny_base, words_csv

both_kinds = pytest.mark.parametrize("structured", [False, True])


def world(structured: bool, **changes: Any) -> tuple[DiffPruning, Any, dict[str, Tensor], dict[str, Tensor]]:
    """The method, the sites, a base's parameters, and weights in the middle of a first stage."""
    model = tiny.model("bert")
    sites, frozen = find(model), dict(model.named_parameters())
    method = DiffPruning(**{"structured": structured, "density": 0.02, **changes})
    v = method.init(sites, model, torch.Generator())
    generator = torch.Generator().manual_seed(1)
    for name, tensor in v.items():
        tensor.copy_((0.5 if name.startswith("delta.") else 1.5) * torch.randn(tensor.shape, generator=generator))
    return method, sites, frozen, v


def at_rest(v: dict[str, Tensor], name: str) -> Tensor:
    """δ of a parameter, written out."""

    def z(alpha: Tensor) -> Tensor:
        return (3 / (1 + torch.exp(-alpha)) - 1.5).clamp(0, 1)

    return v[f"delta.{name}"] * z(v[f"gate.{name}"]) * (z(v[f"group.{name}"]) if f"group.{name}" in v else 1)


@both_kinds
def test_at_birth_it_is_the_base(structured: bool) -> None:
    model = tiny.model("bert")
    sites, frozen = find(model), dict(model.named_parameters())
    method = DiffPruning(structured=structured)
    v = method.init(sites, model, torch.Generator())
    for name, tensor in method.weights(sites, frozen, v).items():
        assert torch.equal(tensor, frozen[name])
    kinds = {"delta", "gate", "group"} if structured else {"delta", "gate"}
    assert {name.partition(".")[0] for name in v} == kinds


@both_kinds
def test_without_gradients_the_gates_are_at_rest_and_nothing_is_drawn(structured: bool) -> None:
    method, sites, frozen, v = world(structured)
    before = torch.get_rng_state()
    with torch.no_grad():
        new = method.weights(sites, frozen, v)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(new) == set(universe(frozen))
    for name, tensor in new.items():
        torch.testing.assert_close(tensor, frozen[name] + at_rest(v, name))


def test_in_training_the_gates_are_drawn_from_torchs_generator() -> None:
    method, sites, frozen, v = world(False)
    torch.manual_seed(3)
    first = method.weights(sites, frozen, v)
    second = method.weights(sites, frozen, v)
    torch.manual_seed(3)
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(method.weights(sites, frozen, v)[name], first[name])
    assert not torch.equal(first[name], second[name])


@both_kinds
def test_the_expected_l0_is_that_of_many_draws(structured: bool) -> None:
    method, _, _, v = world(structured)
    torch.manual_seed(0)
    draws = []
    for _ in range(200):
        delta = method.delta(v)
        draws.append(float(sum(int(d.count_nonzero()) for d in delta.values())))
    mean, spread = sum(draws) / 200, torch.tensor(draws).std().item() / math.sqrt(200)
    assert abs(float(method.expected(v)) - mean) < 4 * spread
    report = method.report(v)
    assert report["expected_l0"] == float(method.expected(v))
    realised = sum(int(at_rest(v, n.removeprefix("gate.")).count_nonzero()) for n in v if n.startswith("gate."))
    assert report["realised_l0"] == realised


def test_all_gates_open_cost_the_strength_on_a_base_of_any_size() -> None:
    method, _, _, v = world(True, strength=7.0)
    for name, tensor in v.items():
        if not name.startswith("delta."):
            tensor.fill_(30.0)
    assert float(method.penalty(v)) == pytest.approx(7.0)  # type: ignore[arg-type]
    for name, tensor in v.items():
        if name.startswith("group."):
            tensor.fill_(-30.0)
    assert float(method.penalty(v)) == pytest.approx(0.0, abs=1e-3)  # type: ignore[arg-type]


@both_kinds
def test_gradients_reach_weights_and_gates(structured: bool) -> None:
    method, sites, frozen, v = world(structured)
    for name, tensor in v.items():
        if name.startswith("group."):
            tensor.fill_(0.5)  # neither open nor closed
        tensor.requires_grad_()
    frozen = {name: p.detach() for name, p in frozen.items()}
    torch.manual_seed(4)
    for _ in range(20):  # in one draw alone some groups are closed
        sum((w * torch.randn(w.shape)).sum() for w in method.weights(sites, frozen, v).values()).backward()  # type: ignore[union-attr]
    assert [name for name, tensor in v.items() if tensor.grad is None or not tensor.grad.any()] == []
    gates = {name: tensor for name, tensor in v.items() if not name.startswith("delta.")}
    for tensor in gates.values():
        tensor.grad = None
    method.penalty(v).backward()  # type: ignore[union-attr]
    assert all((tensor.grad > 0).all() for tensor in gates.values()), "an open gate costs"  # type: ignore[operator]


@both_kinds
def test_the_cut_keeps_exactly_the_k_largest_and_their_values(structured: bool) -> None:
    method, sites, frozen, v = world(structured)
    after = method.advance(sites, frozen, v, {"head.bias": torch.ones(1)})
    assert set(after) == {"sparse.positions", "sparse.values"}, "the head goes on as it is"
    k = round(0.02 * sum(p.numel() for p in frozen.values()))
    flat = torch.cat([at_rest(v, name).flatten() for name in universe(frozen)])
    order = torch.sort(flat.abs(), descending=True, stable=True).indices[:k].sort().values
    assert torch.equal(sparse.decode(after["sparse.positions"]), order)
    torch.testing.assert_close(after["sparse.values"], flat[order])
    assert method.penalty(after) is None
    assert method.report(after) == {"expected_l0": k, "realised_l0": k}
    moved = method.weights(sites, frozen, after)
    assert sum(int((tensor != frozen[name]).sum()) for name, tensor in moved.items()) == k


def test_with_too_few_open_gates_the_cut_fills_up_with_the_nearest() -> None:
    method, sites, frozen, v = world(False)
    for name, tensor in v.items():
        if name.startswith("gate."):
            tensor.fill_(-2.0)
    wanted = "encoder.layer.1.output.dense.weight"
    v[f"gate.{wanted}"].view(-1)[:3] = 3.0
    v[f"delta.{wanted}"].view(-1)[:3] = 1e-4  # open, if small
    v[f"delta.{wanted}"].view(-1)[3:9] = 50.0  # closed, and large
    after = method.advance(sites, frozen, v, {})
    assert len(after["sparse.values"]) == method.size(sites, frozen)
    start = sum(frozen[n].numel() for n in universe(frozen)[: universe(frozen).index(wanted)])
    assert set(range(start, start + 9)) <= set(sparse.decode(after["sparse.positions"]).tolist())
    assert after["sparse.values"].count_nonzero() == 3


def test_gates_learn_fast_and_are_not_decayed() -> None:
    method = DiffPruning()
    assert method.constant_rate("gate.x.weight") == method.constant_rate("group.x.weight") == 0.1
    assert method.constant_rate("delta.x.weight") is method.constant_rate("head.weight") is None
    assert method.lr * method.rate("delta.x.weight") == pytest.approx(5e-5)
    assert method.rate("sparse.values") == method.rate("head.weight") == 1
    assert not method.decays("gate.x.weight")
    assert not method.decays("sparse.values")
    assert method.decays("delta.x.weight")
    assert method.decays("head.weight")


def test_a_gate_moves_by_its_own_rate_whatever_lr_is_and_however_small_its_gradient() -> None:
    method, _, _, v = world(True)
    trained = {name: tensor.clone().requires_grad_() for name, tensor in v.items()}
    optimiser = adamw(method, trained, 0.01, "cpu")
    of = {id(p): group for group in optimiser.param_groups for p in group["params"]}
    for lr in (1e-3, 1e-5, 0.0):  # of settings, and along a schedule
        set_rate(optimiser, lr)
        for name, p in trained.items():
            gate = name.startswith(("gate.", "group."))
            assert of[id(p)]["lr"] == pytest.approx(0.1 if gate else 0.05 * lr)
            assert of[id(p)]["eps"] <= 1e-12 if gate else of[id(p)]["eps"] == 1e-8
            assert not (gate and of[id(p)]["weight_decay"])
    for p in trained.values():
        p.grad = torch.full_like(p, 8e-10)  # of an open gate in BERT-large
    before = {name: p.detach().clone() for name, p in trained.items()}
    optimiser.step()
    for name, p in trained.items():
        if name.startswith(("gate.", "group.")):
            torch.testing.assert_close(p.detach(), before[name] - 0.1, rtol=0, atol=1e-3)


def test_gradients_of_gates_are_clipped_apart() -> None:
    method = DiffPruning()
    trained = {name: torch.zeros(4, requires_grad=True) for name in ("gate.x", "group.x", "delta.x", "head.bias")}
    for name, p in trained.items():
        p.grad = torch.full_like(p, 100.0 if name.startswith("g") else 0.25)
    clip(method, trained, 1.0, ProcessGroup("cpu"))
    assert torch.equal(trained["delta.x"].grad, torch.full((4,), 0.25))  # type: ignore[arg-type]
    both = torch.cat([trained["gate.x"].grad, trained["group.x"].grad])  # type: ignore[list-item]
    assert float(both.norm()) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [1e-3, 1e-5])
def test_the_gates_close_towards_the_density_whatever_the_learning_rate(tmp_path: Path, lr: float) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    data = words_csv(tmp_path / "words.csv", 160)
    options: dict[str, Any] = {"epochs": 10, "batch_size": 8, "patience": 1, "baselines": False}
    record = api.train(data, base=base, method="diff_pruning:0.05", lr=lr, **options).task.record
    gated = [h["expected_l0"] for h in record.history if h["stage"] == 0]
    k, gates = record.parameters["adapters"], sum(p.numel() for p in base.hooked.backbone.parameters())
    assert len(gated) == 10, "scores that fall while gates close do not end the stage"
    assert gated[0] > 0.5 * gates, "they begin open"
    assert gated[-1] < 0.2 * gates, "and close"
    assert abs(gated[-1] - k) < 0.2 * abs(gated[0] - k)


@pytest.mark.parametrize("wrong", [{"strength": -1}, {"strength": "a"}, {"structured": 1}, {"density": 2}])
def test_bad_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match=next(iter(wrong))):
        DiffPruning(**wrong)


def test_spelling() -> None:
    how = DiffPruning(density=0.01, structured=False, strength=3.0)
    assert parse(str(how)) == how
    assert parse("diff_pruning:0.1").density == 0.1  # type: ignore[attr-defined]


def test_a_trained_task_is_small_and_predicts_the_same_bits_when_read_again(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    store = Store(tmp_path / "store")
    data = words_csv(tmp_path / "words.csv")
    bound = api.train(data, base=base, store=store, method="diff_pruning:0.05", epochs=2, lr=1e-3, baselines=False)
    task = bound.task
    k = round(0.05 * task.record.parameters["base"])
    assert set(task.weights) == {"sparse.positions", "sparse.values", "head.weight", "head.bias"}
    assert len(task.weights["sparse.values"]) == k == task.record.parameters["adapters"]
    assert 4 * k + len(task.weights["sparse.positions"]) <= 6 * k
    assert all({"expected_l0", "realised_l0"} <= set(h) for h in task.record.history)
    assert task.record.history[-1]["expected_l0"] == k
    texts = ["the old hammer", "lion wolf", "a plum and a pear"]
    assert torch.equal(base.bind(store["task"]).logits(texts), bound.logits(texts))
    assert fingerprint(base.hooked.backbone) == base.fingerprint
