"""Plans that begin alike share their lower layers: every layer runs as often as it must, and the bits are the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adaptree as at
from adaptree.compose import drop, dropped
from adaptree.methods import parse
from adaptree.models import shared_layers
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.loading import load_base
from adaptree.models.shared_layers import SharedLayers, outputs
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import tiny_base

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple", "a very old hammer with the small new drill"]


def base_of(folder: Path, case: str) -> Base:
    """A tiny base of an architecture, with the tokenizer of words."""
    tiny_base(folder, layers=3)
    if case != "bert":
        tiny.model(case).save_pretrained(folder)
    return load_base(folder)


def task_of(base: Base, method: str) -> Task:
    """A task whose weights were moved at random as far as training would."""
    rows = [{"text": text, "label": label} for text in TEXTS * 3 for label in "ab"]
    head = at.train(rows, base=base, method="head", epochs=1, baselines=False).task
    how, generator = parse(method), torch.Generator().manual_seed(1)
    v = how.init(base.hooked.sites, base.hooked.backbone, generator)
    v = {name: t + 0.2 * torch.randn(t.shape, generator=generator) for name, t in (v | head.weights).items()}
    return Task(replace(head.record, method=str(how)), v)


def ablations(base: Base, method: str, keep_norms: bool) -> tuple[list[Bound], list[Any]]:
    """A task whole, and without each span of layers."""
    whole, depth = base.bind(task_of(base, method)), base.hooked.sites.depth
    spans = [(i, j) for i in range(depth) for j in range(i, depth)]
    bounds, signatures = [whole], [(False,) * depth]
    for i, j in spans:
        expression = drop(whole.composition.expression, layers=f"{i}-{j}", keep_norms=keep_norms)
        bounds.append(Bound(base, dropped(whole.composition, expression)))
        signatures.append(tuple(i <= layer <= j for layer in range(depth)))
    return bounds, signatures


def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each layer of a `SharedLayers` is computed from now on."""
    seen: Counter[int] = Counter()
    real = SharedLayers._remembering

    def counting(self: Any, layer: int, compute: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            seen[layer] += 1
            return compute(*args, **kwargs)

        return real(self, layer, counted)

    monkeypatch.setattr(SharedLayers, "_remembering", counting)
    return seen


def differing(bounds: list[Bound], signatures: list[Any]) -> list[int]:
    """The tasks whose shared output has other bits than their own."""
    examples = bounds[0].read(TEXTS)
    ((_, found),) = outputs(bounds, signatures, iter([examples]))
    alone = [bound.compute(examples) for bound in bounds]
    assert len({tuple(out.flatten().tolist()) for out in alone if isinstance(out, Tensor)}) > len(bounds) / 2
    return [i for i, (a, b) in enumerate(zip(found, alone, strict=True)) if not torch.equal(a, b)]  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_norms", [True, False])
@pytest.mark.parametrize("case", ["bert", "gpt2", "deberta-v2", "t5", "modernbert", "llama", "bart", "albert"])
def test_the_bits_are_those_of_each_task_alone(
    tmp_path: Path, case: str, keep_norms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = runs(monkeypatch)
    bounds, signatures = ablations(base_of(tmp_path / "base", case), "houlsby:4", keep_norms)
    assert differing(bounds, signatures) == []
    shares = case != "albert"  # its one layer runs several times in a pass
    assert bool(seen) is shares
    depth = bounds[0].base.hooked.sites.depth
    assert sum(seen.values()) < len(bounds) * depth * len({len(row.ids) for e in bounds[0].read(TEXTS) for row in e})


@pytest.mark.parametrize(
    "method", ["pfeiffer(size=4, invertible=true)", "lora:2", "pal:12", "houlsby_parallel:4", "bapna:4"]
)
def test_every_method_shares_its_layers(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs(monkeypatch)
    bounds, signatures = ablations(base_of(tmp_path / "base", "bert"), method, False)
    assert differing(bounds, signatures) == []
    batches = seen[0] // 2  # the lowest layer runs once with and once without its adapters
    prefixes = [len({signature[: layer + 1] for signature in signatures}) for layer in range(3)]
    assert [seen[layer] for layer in range(3)] == [batches * count for count in prefixes]
    assert prefixes == [2, 4, 7]


def test_methods_that_replace_weights_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs(monkeypatch)
    assert differing(*ablations(base_of(tmp_path / "base", "bert"), "bitfit", True)) == []
    assert not seen


def test_where_sharing_changes_a_bit_nothing_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = SharedLayers.compute
    monkeypatch.setattr(SharedLayers, "compute", lambda *args: compute(*args) + 1e-3)
    bounds, signatures = ablations(base_of(tmp_path / "base", "bert"), "pfeiffer:4", False)
    assert differing(bounds, signatures) == []
    assert shared_layers._equal([torch.ones(2)], [torch.ones(2)])
    assert not shared_layers._equal([torch.ones(2)], [torch.zeros(2)])
