"""AdapterDrop (Rücklé et al. 2021): with `layers`, backward stops at the lowest touched layer.

The proof is autograd's own: below that layer no output asks for a gradient and nothing was saved for a backward pass,
and the graph that the loss hangs on ends in the task's weights and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptree import api
from adaptree.methods import METHODS, Method
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.models.sites import Sites
from adaptree.training import loop
from tests.bases import tiny_base, words_csv
from tests.laws.ground import CUT, INSIDE, REFUSED, SUBJECTS, loss, shake, small, tune

CASES = ("bert", "distilbert", "modernbert", "gpt2", "t5")
HERE = [
    (case, method) for method in SUBJECTS for case in CASES if case not in REFUSED.get(method.removesuffix(CUT), {})
]


def restricted(method: str, top: int) -> Method:
    """A method in the top layers alone; one of the baselines says so with a number of its own, one touches none."""
    own: dict[str, dict[str, Any]] = {"top": {"n": top}, "head": {}}
    return small(method, **own.get(method, {"layers": f"top:{top}"}))


@dataclass
class Record:
    """What autograd did in one forward pass of a backbone, in order, up to and after the lowest touched layer."""

    below: list[str] = field(default_factory=list)
    """The modules that ran before it."""
    recorded: list[str] = field(default_factory=list)
    """Those of them whose output asks for a gradient, and what was saved for backward meanwhile."""
    entered: list[bool] = field(default_factory=list)
    """Whether what goes into that layer asks for a gradient."""
    layers: dict[int, bool] = field(default_factory=dict)
    """Whether a layer's output does."""


def tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors(value)


def asks(values: Any) -> bool:
    return any(tensor.requires_grad or tensor.grad_fn is not None for tensor in tensors(values))


@contextlib.contextmanager
def listening(backbone: nn.Module, sites: Sites, lowest: int) -> Iterator[Record]:
    """Hear every module of a backbone; `lowest` is the lowest touched layer, or the depth where none is."""
    record, inside, handles = Record(), {"backbone": False, "below": True}, []

    def begin(*given: Any) -> None:  # what a method computes from its own weights comes before the base runs
        inside.update(backbone=True, below=True)

    def end(*given: Any) -> None:
        inside.update(backbone=False)

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        record.entered.append(asks((args, kwargs)))
        inside.update(below=False)

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if inside["below"]:
                record.below.append(path)
                if asks(output):
                    record.recorded.append(path)
            if path in sites.layers:
                record.layers[sites.layers.index(path)] = asks(output)

        return hook

    def save(tensor: Tensor) -> Tensor:
        if inside["backbone"] and inside["below"]:
            record.recorded.append(f"saved {tuple(tensor.shape)}")
        return tensor

    handles.append(backbone.register_forward_pre_hook(begin))
    for path, module in backbone.named_modules():
        if path:
            handles.append(module.register_forward_hook(after(path)))
    if lowest < sites.depth:
        module = backbone.get_submodule(sites.layers[lowest])
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
    handles.append(backbone.register_forward_hook(end))
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            yield record
    finally:
        for handle in handles:
            handle.remove()


def leaves(*ends: Tensor) -> set[int]:
    """The tensors that a graph accumulates gradients in, by identity."""
    found, seen = set(), set()
    todo: list[Any] = [end.grad_fn for end in ends]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        todo += [following for following, _ in node.next_functions]
    return found


def prove(record: Record, sites: Sites, lowest: int) -> None:
    assert set(range(lowest)) <= set(record.layers), "every layer ran"
    assert [path for path in sites.layers[:lowest] if path not in record.below] == []
    assert record.recorded == [], "nothing below was recorded"
    assert not any(record.entered)
    assert not any(record.layers[layer] for layer in range(lowest))
    assert all(record.layers[layer] for layer in range(lowest, sites.depth))
    assert len(record.entered) == (lowest < sites.depth)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize(("case", "method"), HERE)
def test_backward_stops_at_the_lowest_touched_layer(case: str, method: str, top: int) -> None:
    how = restricted(method, top)
    _, tuned = tune(case, method, how, head=True)
    shake(tuned, 1).train()
    sites, backbone = tuned._attached.sites, tuned._attached.backbone
    lowest = min(how.chosen(sites), default=sites.depth)
    assert lowest == (sites.depth if method == "head" else sites.depth - top)
    torch.manual_seed(0)
    with listening(backbone, sites, lowest) as record:
        value = loss(tuned)
    prove(record, sites, lowest)
    names = {id(p): name for name, p in tuned.named_parameters()}
    assert {names.get(leaf, "not of the task") for leaf in leaves(value)} == set(names.values())
    value.backward()
    assert all(p.grad is None for p in tuned._attached.frozen.values())
    assert all(p.grad is not None for p in tuned.parameters())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base"), layers=3))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 40)


@pytest.mark.parametrize("method", [name for name in INSIDE if name != "head"])  # which is solved, without steps
def test_so_it_does_in_every_step_of_training(
    base: Base, data: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, sites = restricted(method, 1), base.hooked.sites
    lowest = min(how.chosen(sites), default=sites.depth)
    stages: list[int] = []
    states: list[Tensor] = []
    step, hidden = loop.Trainer._step, Base.hidden

    def watched(run: loop.Trainer, *given: Any) -> None:
        states.clear()
        with listening(run.hooked.backbone, sites, lowest) as record:
            step(run, *given)
        prove(record, sites, lowest)
        names = {id(p): name for name, p in run.trained.items() if not name.startswith("head.")}
        assert {names.get(leaf, "not of the task") for leaf in leaves(*states)} == set(names.values())
        assert len(states) == 1
        stages.append(run.state.stage)

    def kept(self: Base, *given: Any) -> tuple[Tensor, Tensor]:
        out = hidden(self, *given)
        states.append(out[0])
        return out

    monkeypatch.setattr(loop.Trainer, "_step", watched)
    monkeypatch.setattr(Base, "hidden", kept)
    api.train(data, base=base, method=how, epochs=1, batch_size=16, baselines=False)
    assert sorted(set(stages)) == list(range(METHODS[method].stages))


def test_without_layers_all_of_it_is_recorded() -> None:
    """Or the proof would say nothing: it can tell."""
    _, tuned = tune("bert", "houlsby", head=True)
    hooked = tuned._attached
    with listening(hooked.backbone, hooked.sites, 1) as record:
        loss(tuned)
    assert "encoder.layer.0" in record.recorded
    assert "embeddings" in record.recorded, "its norm is the task's"
    assert any(path.startswith("saved") for path in record.recorded)
    assert record.entered == [True]
    with pytest.raises(AssertionError, match="nothing below was recorded"):
        prove(record, hooked.sites, 1)
