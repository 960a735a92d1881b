"""AdapterDrop's robust training: in every step the adapters of some lowest layers are left out, drawn from the seed."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv
from tests.compat.forms import rows

import adaptree as at
from adaptree.errors import UsageError
from adaptree.methods.pfeiffer import INVERTIBLE
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from adaptree.training import contrastive, loop

LAYERS = 4


class World:
    """A base of four layers, data to learn from, and what acted in each step and each evaluation of a training."""

    def __init__(self, root: Path) -> None:
        self.base = load_base(tiny_base(root / "base", layers=LAYERS, mask=True))
        self.data = words_csv(root / "words.csv", 120)
        self.steps: list[tuple[int, ...]] = []
        self.evaluations: list[tuple[int, ...]] = []

    def train(self, data: Any = None, **options: Any) -> at.Task:
        self.steps.clear()
        self.evaluations.clear()
        how = {"method": "pfeiffer:4", "epochs": 2, "batch_size": 8, "lr": 5e-3, "baselines": False, **options}
        return at.train(self.data if data is None else data, base=self.base, **how).task

    def drawn(self) -> list[int]:
        """How many of the lowest layers each step left out."""
        assert all(layers == tuple(range(LAYERS - len(layers), LAYERS)) for layers in self.steps)
        return [LAYERS - len(layers) for layers in self.steps]


def acting(trainer: loop.Trainer) -> tuple[int, ...]:
    """The layers in which something of the task acts now."""
    sites = trainer.hooked.sites
    return tuple(sorted({sites.layer_of(f"{path}.") for path in trainer.hooked.plan}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture
def world(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(root)
    for trainer in (loop.Trainer, contrastive.ContrastiveTrainer):
        backward, evaluate = trainer._backward, loop.Trainer.evaluate

        def step(self: Any, *args: Any, real: Any = backward) -> Any:
            found.steps.append(acting(self))
            return real(self, *args)

        def score(self: Any, real: Any = evaluate) -> Any:
            found.evaluations.append(acting(self))
            return real(self)

        monkeypatch.setattr(trainer, "_backward", step)
        if trainer is loop.Trainer:
            monkeypatch.setattr(trainer, "evaluate", score)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield found
    torch.set_num_threads(threads)


def digest(task: at.Task) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(task.weights.items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("method", ["pfeiffer:4", "houlsby:4", "lora:2", "ia3", "pal(size=16, heads=4)"])
def test_every_step_leaves_out_some_lowest_layers_and_every_evaluation_none(world: World, method: str) -> None:
    world.train(method=method, adapter_drop=2, epochs=4)
    drawn = world.drawn()
    assert set(drawn) == {0, 1, 2}
    assert all(drawn.count(n) > len(drawn) / 6 for n in (0, 1, 2)), "the draw is far from even"
    assert set(world.evaluations) == {tuple(range(LAYERS))}


def test_the_draw_is_the_seeds(world: World) -> None:
    first = world.train(adapter_drop=3)
    drawn = world.drawn()
    again = world.train(adapter_drop=3)
    assert world.drawn() == drawn
    assert digest(again) == digest(first)
    world.train(adapter_drop=3, seed=1)
    assert world.drawn() != drawn
    assert first.record.settings["adapter_drop"] == 3


def test_without_it_nothing_is_left_out(world: World) -> None:
    plain = world.train()
    assert set(world.drawn()) == {0}
    assert digest(world.train(adapter_drop=0)) == digest(plain)
    assert digest(world.train(adapter_drop=1)) != digest(plain)


def test_a_batch_in_parts_leaves_out_the_same_in_all_of_them(world: World) -> None:
    whole, parts = world.train(adapter_drop=2), world.train(adapter_drop=2, accumulate=3)
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], tensor, atol=1e-4, rtol=1e-3)


def test_a_resumed_run_leaves_out_what_it_would_have(world: World, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"adapter_drop": 3, "epochs": 3, "store": Store(tmp_path / "store"), "name": "words"}
    whole = world.train(**{**kept, "store": None})
    drawn = world.drawn()
    steps = 0

    def press(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["event"] == "step"
        if event["event"] == "step" and steps == 17:
            signal.raise_signal(signal.SIGINT)

    world.train(**kept, on_event=press)
    before = world.drawn()
    assert len(before) == 17
    again = world.train(**kept, resume=True)
    assert before + world.drawn() == drawn
    assert digest(again) == digest(whole)


def test_what_is_cached_below_stays_cached(world: World) -> None:
    tasks = [
        world.train(method="pfeiffer(size=4, layers='1-3')", adapter_drop=3, activation_cache=how)
        for how in ("fp32", "off")
    ]
    assert tasks[0].record.settings["cached_layers"] == 1
    assert digest(tasks[0]) == digest(tasks[1])
    assert {layers[0] for layers in world.steps} == {1, 2, 3}


def test_contrastive_training_leaves_out_layers_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "STEPS", 12)
    monkeypatch.setattr(contrastive, "PASSES", 1)
    world.train(adapter_drop=2, objective="contrastive", epochs=None)
    assert set(world.drawn()) == {0, 1, 2}


def test_a_coupling_that_is_left_out_is_not_inverted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    forward = loop.forward

    def looked(base: Any, examples: Any, kind: Any, v: Any, *args: Any, hooked: Any, **more: Any) -> Any:
        seen.append((hooked.sites.layers[0] in hooked.plan, any(name.startswith(INVERTIBLE) for name in v)))
        return forward(base, examples, kind, v, *args, hooked=hooked, **more)

    monkeypatch.setattr(loop, "forward", looked)
    world.train(rows("mlm", 60), kind="mlm", method="pfeiffer(size=4, invertible=true)", adapter_drop=1)
    assert set(seen) == {(True, True), (False, False)}


def test_dropping_the_lowest_layer_then_costs_less(world: World, tmp_path: Path) -> None:
    data, test = words_csv(tmp_path / "more.csv", 240), words_csv(tmp_path / "test.csv", 300, seed=5)
    world.base = load_base(tiny_base(tmp_path / "base", layers=LAYERS))
    lost = {}
    for most in (0, 3):
        task = world.train(data, method="houlsby:8", epochs=10, lr=1e-2, batch_size=32, seed=2, adapter_drop=most)
        scores = [
            at.evaluate(world.base.bind(text, tasks={"a": task}), test)["metrics"]["test"]["accuracy"]
            for text in ("a", "drop(a, layers='0')")
        ]
        lost[most] = scores[0] - scores[1]
    assert lost[0] > 0.15, "this task needs its lowest layer"
    assert lost[3] < lost[0] / 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "norms"}, "norms has none"),
        ({"method": "head"}, "head has none"),
        ({"method": "full"}, "full has none"),
        ({"method": "bitfit"}, "bitfit has none"),
        ({"method": "lt_sft:0.05"}, "lt_sft has none"),
        ({"method": "tfidf"}, "tfidf has none"),
        ({"adapter_drop": 4}, "would leave out all adapters: this base has 4 layers.*--adapter-drop 3"),
        ({"method": "pfeiffer(layers='2-3')"}, "leaves out nothing: the lowest adapters are in layer 2"),
        ({"adapter_drop": 1, "fast": True}, "leaves out nothing: the lowest adapters are in layer 1.*--fast"),
        ({"adapter_drop": -1}, "adapter_drop must be a whole number of at least 0, not -1"),
        ({"adapter_drop": 1.5}, "adapter_drop must be a whole number"),
    ],
)
def test_what_cannot_be_left_out_is_refused(world: World, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        world.train(**{"adapter_drop": 2, **options})
    assert not world.steps
