"""A composition kept as a task: it answers as the expression does, says what it is made of, and stands by itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adaptree as at
from adaptree.cli import main
from adaptree.errors import CompositionError, StoreError, TaskNotFound, UsageError, WrongBase
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.loading import load_base
from adaptree.reports import card
from adaptree.tasks.record import FUSES, MADE_OF, NEEDS, ON, SAW
from adaptree.tasks.runs import remember, run_folder
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import checkpoint, pipeline
from adaptree.training.composing import compose
from tests.bases import tiny_base, words_csv

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple"]


class World:
    """A tiny base with 3 layers, and tasks to compose: each trained when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.base = load_base(tiny_base(root / "base", layers=3))
        self.data = words_csv(root / "words.csv", 60)
        self.options: dict[str, Any] = {"base": self.base, "epochs": 1, "lr": 1e-2, "baselines": False}
        self.made: dict[tuple[str, int], Task] = {}

    def store(self, folder: Path, **methods: str) -> Store:
        """A store of its own for a test, with these tasks in it."""
        store = Store(folder)
        for seed, (name, method) in enumerate(methods.items()):
            if (method, seed) not in self.made:
                self.made[method, seed] = at.train(self.data, method=method, seed=seed, **self.options).task
            task = self.made[method, seed]
            store.add(Task(replace(task.record, name=name), task.tensors))
        return store

    def train(self, store: Store, name: str, **options: Any) -> None:
        """Train a small task in a store."""
        at.train(self.data, **{"name": name, "method": "pfeiffer:4", "store": store, **self.options, **options})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def store(world: World, tmp_path: Path) -> Store:
    return world.store(tmp_path / "store", **dict.fromkeys("abc", "pfeiffer(size=8, init_std=0.3)"))


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def same(base: Base, store: Store, text: str, name: str = "new") -> Bound:
    """Compose, and see that what is stored answers as the expression does, and as its own probe says."""
    want = base.bind(text, tasks=store).logits(TEXTS)
    made = compose(text, name=name, store=store, base=base)
    stored = store[name]
    found = base.bind(stored).logits(TEXTS)
    assert off(found, want) < 1e-6
    assert torch.equal(made.logits(TEXTS), found)
    record = stored.record
    assert record.metrics == record.intervals == record.baselines == {}
    assert record.history == []
    assert "insight" not in record.extra
    assert len(record.probe["inputs"]) == 4
    assert torch.equal(base.bind(stored).logits(record.probe["inputs"]), stored.tensors["probe.logits"])
    return made


# average


def test_an_average_is_an_ordinary_task_with_the_mean_of_the_weights(world: World, store: Store) -> None:
    made = same(world.base, store, "average(a, b, weights=[0.25, 0.75])").task
    a, b = store["a"].weights, store["b"].weights
    assert set(made.weights) == set(a)
    for name, tensor in made.weights.items():
        assert off(tensor, 0.25 * a[name] + 0.75 * b[name]) < 1e-6
    saw = {store["a"].record.data["digest"]: "b@1"}  # they have one file, and the last is named
    assert made.record.extra == {MADE_OF: "average(a@1, b@1, weights=[0.25, 0.75])", SAW: saw}
    assert made.record.method == store["a"].record.method
    assert made.record.labels == store["a"].record.labels
    assert made.record.parameters == store["a"].record.parameters
    first = store["a"].tensors["probe.logits"]
    assert not torch.equal(made.tensors["probe.logits"], first), "the probe is that of other weights"


def test_an_average_needs_its_parts_no_more(world: World, store: Store) -> None:
    want = same(world.base, store, "average(average(a, b), c)").logits(TEXTS)
    for name in "abc":
        store.remove(name)
    assert torch.equal(world.base.bind(store["new"]).logits(TEXTS), want)


def test_an_average_of_tasks_trained_on_another_stays_on_it(world: World, store: Store) -> None:
    for seed, name in enumerate("xy"):
        world.train(store, name, on="a", seed=seed)
    made = same(world.base, store, "average(x, y)").task
    assert made.record.extra[ON] == "a@1"
    assert list(made.record.extra[NEEDS]) == ["a@1"]


def test_deltas_at_different_places_have_no_mean_of_one_method(world: World, tmp_path: Path) -> None:
    store = world.store(tmp_path / "store", a="lt_sft:0.05", b="lt_sft:0.05")
    assert world.base.bind("average(a, b)", tasks=store).logits(TEXTS).isfinite().all()
    with pytest.raises(CompositionError, match=r"change different weights of the base.*Use the expression itself"):
        compose("average(a, b)", name="new", store=store, base=world.base)
    assert "new" not in store


# drop


@pytest.mark.parametrize("method", ["houlsby:8", "pfeiffer:8", "bapna:4", "lora:2", "ia3", "bitfit", "norms", "full"])
@pytest.mark.parametrize("layers", ["0", "2", "0-1"])
def test_without_some_layers_only_the_weights_of_the_others_are_kept(
    world: World, tmp_path: Path, method: str, layers: str
) -> None:
    store = world.store(tmp_path / "store", a=method)
    made = same(world.base, store, f"drop(a, layers={layers})").task
    counts = made.record.parameters
    assert counts["trained"] == sum(tensor.numel() for tensor in made.weights.values())
    assert counts["trained"] < store["a"].record.parameters["trained"]
    assert all(torch.equal(tensor, store["a"].weights[name]) for name, tensor in made.weights.items())
    kept = {"0": "1,2", "2": "0,1", "0-1": "2"}[layers]
    assert f"layers='{kept}'" in made.record.method


def test_layers_are_dropped_from_all_that_is_inside(world: World, store: Store) -> None:
    same(world.base, store, "drop(average(a, b), layers=1)", "of-average")
    made = same(world.base, store, "drop(stack(a, b), layers=1)", "of-stack").task
    assert made.record.extra[ON] == "drop(a@1, layers='1')"
    world.train(store, "x", on="a")
    made = same(world.base, store, "drop(x, layers=1)", "of-trained-on").task
    assert made.record.extra[ON] == "drop(a@1, layers='1')"


@pytest.mark.parametrize(
    ("method", "layers", "why"),
    [
        ("pfeiffer:8", "0-2", "leaves nothing but the head"),
        ("lt_sft:0.05", "0", "not kept layer by layer"),
        ("top:1", "0", "top cannot be cut to some layers"),
    ],
)
def test_what_cannot_be_kept_without_some_layers_is_refused(
    world: World, tmp_path: Path, method: str, layers: str, why: str
) -> None:
    store = world.store(tmp_path / "store", a=method)
    with pytest.raises(CompositionError, match=rf"{why}.*Use the expression itself"):
        compose(f"drop(a, layers={layers})", name="new", store=store, base=world.base)
    assert "new" not in store


def test_without_norms_of_its_own_a_task_may_be_told_to_keep_them(world: World, store: Store) -> None:
    made = same(world.base, store, "drop(a, layers=0, keep_norms=true)", "less").task
    assert "layers='1,2'" in made.record.method
    world.train(store, "x", on="a")
    made = same(world.base, store, "drop(x, layers=1, keep_norms=true)", "of-trained-on").task
    assert made.record.extra[ON] == "drop(a@1, layers='1', keep_norms=true)"
    with pytest.raises(CompositionError, match=r"some keep their norms.*Use the expression itself"):
        compose("drop(stack(drop(a, layers=0), b), layers=1, keep_norms=true)", name="y", store=store, base=world.base)


@pytest.mark.parametrize("method", ["houlsby:8", "bitfit", "full"])
def test_one_task_has_no_norms_where_it_has_no_adapters(world: World, tmp_path: Path, method: str) -> None:
    store = world.store(tmp_path / "store", a=method)
    with pytest.raises(CompositionError, match="Use the expression itself"):
        compose("drop(a, layers=0, keep_norms=true)", name="new", store=store, base=world.base)
    assert "new" not in store


@pytest.mark.parametrize(
    "text",
    [
        "drop(x, layers=1)",
        "drop(stack(drop(a, layers=0), b), layers=1)",
        "drop(stack(drop(a, layers=0), b), layers='top:1')",
    ],
)
def test_what_lacks_some_layers_already_loses_others_too(world: World, store: Store, text: str) -> None:
    world.train(store, "x", on="drop(a, layers=0)")
    same(world.base, store, text)


# stack


def test_a_stack_is_its_last_part_on_top_of_the_rest(world: World, store: Store) -> None:
    made = same(world.base, store, "stack(a, stack(b, c))").task
    assert all(torch.equal(tensor, store["c"].weights[name]) for name, tensor in made.weights.items())
    assert made.record.extra[ON] == "stack(a@1, b@1)"
    assert made.record.extra[NEEDS] == {f"{name}@1": store[name].record.digest for name in "ab"}
    with pytest.raises(StoreError, match="'a' is part of new@1"):
        store.remove("a")
    store.remove("c")  # its weights are the new task's own
    assert torch.equal(world.base.bind(store["new"]).logits(TEXTS), world.base.bind(made).logits(TEXTS))


def test_a_stack_goes_to_another_store_with_what_it_stands_on(world: World, store: Store, tmp_path: Path) -> None:
    want = same(world.base, store, "stack(average_outputs(a, b), c)").logits(TEXTS)
    store["new"].save(tmp_path / "out")
    other = Store(tmp_path / "other")
    other.add(Task.load(tmp_path / "out"))
    assert sorted(other) == ["a", "b", "new"]
    assert torch.equal(world.base.bind(other["new"]).logits(TEXTS), want)


def test_in_a_stack_it_does_not_count_what_a_part_was_trained_on(world: World, store: Store) -> None:
    world.train(store, "x", on="a")
    assert same(world.base, store, "stack(b, x)", "swapped").task.record.extra[ON] == "b@1"
    alone = same(world.base, store, "stack(x)", "alone").task
    assert ON not in alone.record.extra
    assert NEEDS not in alone.record.extra
    swapped, trained = (world.base.bind(store[name]).logits(TEXTS) for name in ("swapped", "x"))
    assert off(swapped, trained) > 1e-4


def test_in_a_stack_an_average_is_of_tasks_that_were_trained_on_others(world: World, store: Store) -> None:
    for seed, (name, on) in enumerate((("x", "a"), ("y", "b"))):
        world.train(store, name, on=on, seed=seed)
    with pytest.raises(CompositionError, match=r"'x@1' and 'y@1' were trained on other tasks.*stack"):
        compose("average(x, y)", name="new", store=store, base=world.base)
    assert same(world.base, store, "stack(c, average(x, y))", "both").task.record.extra[ON] == "c@1"
    assert same(world.base, store, "stack(c, drop(average(x, y), layers=0))", "less").task.record.extra[ON] == "c@1"


def test_blocks_in_a_stack_are_made_first(world: World, store: Store) -> None:
    same(world.base, store, "stack(c, average(a, b))", "with-average")
    same(world.base, store, "stack(c, drop(a, layers=0))", "with-drop")


def test_a_fused_task_can_be_the_last_of_a_stack(world: World, store: Store) -> None:
    compose("fuse(a, b)", name="f", store=store, data=world.data, epochs=1, baselines=False, base=world.base)
    made = same(world.base, store, "stack(c, f)").task
    assert made.record.extra[FUSES] == "fuse(a@1, b@1)"
    assert made.record.extra[ON] == "c@1"
    assert set(made.record.extra[NEEDS]) == {"a@1", "b@1", "c@1"}
    with pytest.raises(CompositionError, match="fusion cannot be cut to some layers"):
        compose("drop(f, layers=0)", name="less", store=store, base=world.base)


def test_fusions_of_the_same_adapters_have_a_mean(world: World, store: Store) -> None:
    for seed, name in enumerate("fg"):
        compose("fuse(a, b)", name=name, store=store, data=world.data, seed=seed, **world.options)
    compose("fuse(b, c)", name="other", store=store, data=world.data, **world.options)
    made = same(world.base, store, "average(f, g)").task
    assert made.record.extra[FUSES] == "fuse(a@1, b@1)"
    assert set(made.record.extra[NEEDS]) == {"a@1", "b@1"}
    with pytest.raises(CompositionError, match="fuse other tasks"):
        compose("average(f, other)", name="new", store=store, base=world.base)


# fuse


def test_fuse_learns_as_train_does_on_the_base_of_its_parts(world: World, store: Store) -> None:
    world.train(store, "d")  # after which the store knows where the base is
    settings: dict[str, Any] = {"epochs": 2, "seed": 3, "baselines": False}
    found = compose("fuse(a, b)", name="f", store=str(store.path), data=str(world.data), **settings)
    assert found.base.fingerprint == world.base.fingerprint, "the base is that of the parts"
    want = at.train(world.data, name="g", method="fuse(a, b)", base=world.base, store=store, **settings)
    assert all(torch.equal(found.task.weights[name], tensor) for name, tensor in want.task.weights.items())
    assert found.task.record.metrics == want.task.record.metrics


# Bad input


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("a", {}, r"nothing to compose: 'a' is one task"),
        ("stack(a)", {}, r"nothing to compose: stack\(a@1\) is 'a@1'"),
        ("stack()", {}, "bare base"),
        ("average_outputs(a, b)", {}, r"no weights of its own.*Use \"average_outputs\(a, b\)\" itself"),
        ("parallel(a, b)", {}, r"no weights of its own.*Use \"parallel\(a, b\)\" itself"),
        ("rows(a, b)", {}, r"no weights of its own.*Use \"rows\(a, b\)\" itself"),
        ("stack(a, average_outputs(b, c))", {}, "no weights of its own"),
        ("fuse(a, b)", {}, r'has to be learned.*adaptree compose "fuse\(a, b\)" --name new --train DATA'),
        ("average(a, b)", {"data": "x.csv"}, r'only fuse has.*train DATA --name new --on "average\(a, b\)"'),
        ("average(a, b)", {"epochs": 3}, "--epochs is for training"),
        ("average(a, b)", {"name": "New Name"}, "cannot be a task's name"),
        ("average(a, bb)", {}, "no task 'bb'"),
        ("drop(a, layers=7)", {}, "no such layers"),
    ],
)
def test_what_cannot_be_composed_is_refused_and_nothing_is_stored(
    world: World, store: Store, text: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises((UsageError, TaskNotFound), match=why):
        compose(text, **{"name": "new", "store": store, "base": world.base, **options})
    assert sorted(store) == ["a", "b", "c"]


def test_parts_of_other_bases_are_refused(world: World, store: Store, tmp_path: Path) -> None:
    other = load_base(tiny_base(tmp_path / "other", seed=5))
    world.train(store, "stranger", base=other)
    with pytest.raises(WrongBase, match="has no base to run on"):
        compose("stack(a, stranger)", name="new", store=store, base=world.base)
    assert "new" not in store


# The card, and the command


def test_cards_say_what_a_task_is_made_of(world: World, store: Store) -> None:
    compose("fuse(a, b)", name="f", store=store, data=world.data, epochs=1, baselines=False, base=world.base)
    compose("average(a, b)", name="m", store=store, base=world.base)
    compose("stack(a, c)", name="s", store=store, base=world.base)
    text = card.write(store["f"].record)
    assert "It is made of `fuse(a@1, b@1)`: in each layer it attends to what their adapters give." in text
    assert "pfeiffer2021adapterfusion" in text
    assert "It is made of `average(a@1, b@1)`, and was not trained itself." in card.write(store["m"].record)
    assert "It runs on top of `a@1`." in card.write(store["s"].record)
    assert "made of" not in card.write(store["a"].record)


@pytest.fixture
def here(world: World, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the store, which knows where its base is."""
    remember(store, world.base)
    shutil.copy(world.data, tmp_path / "words.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTREE_STORE", str(store.path))
    return tmp_path


def test_the_command_stores_and_tells(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compose", "average(a, b)", "--name", "m", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["task"], told["version"], told["made_of"]) == ("m", 1, "average(a@1, b@1)")
    assert told["metrics"] == {}
    assert main(["compose", "average(a, b)", "--name", "m"]) == 0
    out, err = capsys.readouterr()
    assert "average(a@1, b@1)" in out
    assert "m@2" in out
    assert "version 2" in err
    assert main(["predict", "m", "the lion", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["label"] in ("beast", "fruit", "tool")


def test_the_command_trains_what_is_fused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compose", "fuse(a, b)", "--name", "f", "--train", "words.csv", "--epochs", "1", "--seed", "2", "--quiet"]
    assert main([*words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["made_of"], told["seed"]) == ("fuse(a@1, b@1)", 2)
    assert told["metrics"]["validation"]["accuracy"] >= 0
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "accuracy" in out
    assert err == ""
    assert main(["compose", "fuse(a, b)", "--name", "f"]) == 2
    assert 'adaptree compose "fuse(a, b)" --name f --train DATA' in capsys.readouterr().err


def test_the_command_fuses_tasks_on_what_they_were_trained_on(
    here: Path, world: World, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate("xy"):
        world.train(store, name, on="a", seed=seed)
    words = ["compose", "fuse(x, y, regularisation=0.5)", "--name", "f", "--train", "words.csv", "--epochs", "1", "-q"]
    assert main(words) == 2
    assert 'Add --on "a@1".' in capsys.readouterr().err
    assert "f" not in store
    assert main([*words, "--on", "a@1"]) == 0
    record = store["f"].record
    assert (record.extra[FUSES], record.extra[ON]) == ("fuse(x@1, y@1)", "a@1")
    assert record.method == "fusion(regularisation=0.5)"
    capsys.readouterr()
    assert main(["compose", "average(x, y)", "--name", "m", "--on", "a"]) == 2
    assert "--on is for training" in capsys.readouterr().err


def test_a_stopped_command_says_how_to_go_on(
    here: Path, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*args: Any, **options: Any) -> None:
        folder = run_folder(store, "f")
        checkpoint.write(folder, {"now.head.bias": torch.zeros(2)}, {"history": [{"epoch": 1}], "batch": 3})
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "train", train)
    monkeypatch.setattr("sys.argv", ["adaptree", "compose", "fuse(a, b)", "--name", "f", "--train", "words.csv"])
    assert main(["compose", "fuse(a, b)", "--name", "f", "--train", "words.csv"]) == 1
    told = capsys.readouterr().err
    assert "stopped; all that was trained (1 epoch and 3 steps) is kept." in told
    assert "adaptree compose 'fuse(a, b)' --name f --train words.csv --resume" in told
