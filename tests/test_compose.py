"""Tasks in one model: they act in order, sparse δs add up, and what has no meaning together is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import adaptree as at
from adaptree.core import sparse
from adaptree.errors import CompositionError, WrongBase
from adaptree.methods.sparse import POSITIONS, VALUES, universe
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests.bases import tiny_base, words_csv

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv")


@pytest.fixture(scope="module")
def task(base: Base, data: Path) -> Any:
    """A task of a method, trained for an epoch; one for each spelling."""
    made: dict[tuple[str, int], Task] = {}

    def make(method: str, seed: int = 0) -> Task:
        if (method, seed) not in made:
            done = at.train(data, base=base, method=method, epochs=1, lr=1e-2, seed=seed, baselines=False)
            made[method, seed] = done.task
        return made[method, seed]

    return make


def dense(base: Base, task: Task) -> dict[str, Tensor]:
    """A task's δ, written out as whole parameters without any of the package's code for it but the decoding."""
    flat = torch.zeros(sum(base.hooked.frozen[name].numel() for name in universe(base.hooked.frozen)))
    flat[sparse.decode(task.weights[POSITIONS])] = task.weights[VALUES]
    out, start = {}, 0
    for name in universe(base.hooked.frozen):
        size = base.hooked.frozen[name].numel()
        out[name] = flat[start : start + size].reshape(base.hooked.frozen[name].shape)
        start += size
    return out


def test_what_leaves_the_base_alone_is_not_trained_on_another(
    tmp_path: Path, base: Base, data: Path, task: Any
) -> None:
    store = Store(tmp_path / "store")
    store.add(Task(replace(task("pfeiffer:4").record, name="low"), task("pfeiffer:4").tensors))
    with pytest.raises(CompositionError, match=r"tfidf does not use the base: it cannot be trained on low@1.*--on"):
        at.train(data, base=base, name="bags", method="tfidf", on="low", store=store)
    assert list(store) == ["low"]


def test_sparse_deltas_add_up_and_the_base_keeps_its_bits(base: Base, task: Any) -> None:
    first, second = task("lt_sft:0.05"), task("diff_pruning:0.05", 1)
    before = {name: p.clone() for name, p in base.hooked.frozen.items()}
    found = base.bind(second, on=[first]).logits(TEXTS)

    summed = {name: dense(base, first)[name] + dense(base, second)[name] for name in universe(base.hooked.frozen)}
    rows = base.encoder.encode(TEXTS, second.record.max_length)
    expected = []
    for row in rows:
        weights = {name: p + summed[name] if name in summed else p for name, p in base.hooked.frozen.items()}
        inputs = {"input_ids": torch.from_numpy(row.ids)[None].long(), "attention_mask": torch.ones(1, len(row.ids))}
        hidden = torch.func.functional_call(base.hooked.backbone, weights, kwargs=inputs).last_hidden_state[0, 0]
        expected.append(F.linear(hidden, second.weights["head.weight"], second.weights["head.bias"]))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, base.bind(second).logits(TEXTS), atol=1e-4), "the one below has no effect"
    assert all(torch.equal(p, before[name]) for name, p in base.hooked.frozen.items())
    assert torch.equal(base.bind(second).logits(TEXTS), base.bind(second, on=[]).logits(TEXTS))


def test_sparse_deltas_add_up_in_either_order(base: Base, task: Any) -> None:
    first, second = task("lt_sft:0.05"), task("lt_sft:0.05", 1)
    head = {name: second.weights[name] for name in ("head.weight", "head.bias")}
    swapped = Task(first.record, {**first.weights, **head})
    one, other = base.bind(second, on=[first]).logits(TEXTS), base.bind(swapped, on=[second]).logits(TEXTS)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_bottlenecks_act_one_after_the_other(base: Base, task: Any) -> None:
    first, second = (
        task("houlsby_feedforward(size=8, norms=false, activation=relu)"),
        task("houlsby(size=8, norms=false, activation=tanh)"),
    )
    site = base.hooked.sites.sites[-1]
    module = base.hooked.backbone.get_submodule(
        site.path
    )  # a dropout: what goes in is what comes out, but for the tasks
    seen: list[tuple[Tensor, Tensor]] = []
    bound = base.bind(second, on=[first])
    handle = module.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    try:
        bound.logits(TEXTS[:1])
    finally:
        handle.remove()
    ((x, found),) = seen

    def adapter(x: Tensor, v: dict[str, Tensor], act: Any) -> Tensor:
        (name,) = {n.rpartition(".")[0] for n in v if n.startswith(f"{site.layer}.{site.role}.")}
        down, up = (v[f"{name}.{key}"] for key in ("down", "up"))
        return x + act(x @ down + v[f"{name}.down_bias"]) @ up + v[f"{name}.up_bias"]

    expected = adapter(adapter(x, first.weights, torch.relu), second.weights, torch.tanh)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_bottlenecks_under_a_task_change_its_answer_and_order_counts(base: Base, task: Any) -> None:
    first, second = task("pfeiffer:8"), task("pfeiffer:8", 1)
    alone, both = base.bind(second).logits(TEXTS), base.bind(second, on=[first]).logits(TEXTS)
    assert not torch.allclose(alone, both, atol=1e-4)
    head = {name: second.weights[name] for name in ("head.weight", "head.bias")}
    other = base.bind(Task(first.record, {**first.weights, **head}), on=[second]).logits(TEXTS)
    assert not torch.allclose(both, other, atol=1e-6)


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("houlsby:8", "houlsby:8"),
        ("norms", "houlsby:8"),
        ("full", "lt_sft:0.05"),
        ("lt_sft:0.05", "full"),
        ("top:1", "full"),
        ("bitfit", "houlsby:8"),
        ("houlsby:8", "bitfit"),
    ],
)
def test_two_methods_that_write_the_same_weights_are_refused(base: Base, task: Any, below: str, above: str) -> None:
    with pytest.raises(CompositionError, match=r"write the same weight, .*Sparse δs add up"):
        base.bind(task(above, 1), on=[task(below)])


def test_a_method_outside_the_base_is_refused(base: Base, task: Any) -> None:
    with pytest.raises(CompositionError, match="tfidf does not use the base"):
        base.bind(task("tfidf"), on=[task("pfeiffer:8")])


def test_methods_on_other_weights_go_together(base: Base, task: Any) -> None:
    for below in ("lora:2", "ia3", "pal:12", "lt_sft:0.05", "bapna:4", "parallel_adapter:4"):
        bound = base.bind(task("pfeiffer:8", 1), on=[task(below)])
        assert not torch.allclose(bound.logits(TEXTS), base.bind(task("pfeiffer:8", 1)).logits(TEXTS), atol=1e-5), below


def test_a_norm_of_the_task_comes_before_what_acts_on_its_output(base: Base, task: Any) -> None:
    one = base.bind(task("houlsby:8"), on=[task("bapna:4")]).logits(TEXTS)
    assert not torch.allclose(one, base.bind(task("houlsby:8")).logits(TEXTS), atol=1e-5), "the norm undid bapna"


def test_a_task_of_another_base_is_refused_below_too(base: Base, task: Any, tmp_path: Path, data: Path) -> None:
    other = load_base(tiny_base(tmp_path / "other", seed=5))
    stranger = at.train(data, base=other, method="pfeiffer:8", epochs=1, baselines=False).task
    with pytest.raises(WrongBase, match="trained on another base"):
        base.bind(task("pfeiffer:8"), on=[stranger])


def test_the_lower_task_acts_first_where_the_upper_one_has_norms_too(base: Base, task: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    lower, upper = (
        Task(t.record, {name: w + 0.3 * torch.randn(w.shape, generator=generator) for name, w in t.weights.items()})
        for t in (task("pfeiffer:8"), task("pfeiffer(size=8, norms=true)", 1))
    )
    site = base.hooked.sites.sites[-1]
    closing: Any = base.hooked.backbone.get_submodule(site.closing)
    seen: list[Tensor] = []
    bound = base.bind(upper, on=[lower])
    handles = [
        closing.register_forward_pre_hook(lambda _, args: seen.append(args[0]), prepend=True),  # before any task acts
        closing.register_forward_hook(lambda _, args, output: seen.append(args[0])),  # what the norm was given
    ]
    try:
        bound.logits(TEXTS[:1])
    finally:
        for handle in handles:
            handle.remove()
    r, found = seen

    def norm(x: Tensor, v: dict[str, Tensor]) -> Tensor:
        own = {key: v.get(f"norm.{site.closing}.{key}", getattr(closing, key)) for key in ("weight", "bias")}
        return F.layer_norm(x, x.shape[-1:], own["weight"], own["bias"], closing.eps)

    def beside(r: Tensor, x: Tensor, v: dict[str, Tensor]) -> Tensor:
        name = f"{site.layer}.{site.role}"
        inner = torch.relu(x @ v[f"{name}.down"] + v[f"{name}.down_bias"])
        return r + inner @ v[f"{name}.up"] + v[f"{name}.up_bias"]

    def stacked(*tasks: Task) -> Tensor:
        """MAD-X, §4.1.2: LA = U(ReLU(D(h))) + r, then TA = U(ReLU(D(LA))) + r, with the same r."""
        x = norm(r, upper.weights)
        for each in tasks:
            x = beside(r, x, each.weights)
        return x

    assert not torch.allclose(r, found, atol=1e-3)
    torch.testing.assert_close(found, stacked(lower, upper), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, stacked(upper, lower), atol=1e-4)
