"""Trade-off, init scale, forgetting, SQuAD and masks: tiny runs of the experiments that are built on cells."""

from __future__ import annotations

import dataclasses
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptree.analysis import experiments
from adaptree.analysis.experiments import dropout, forgetting, initscale, ledger, masks, squad, sweep, tradeoff
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.errors import TrainingError, UsageError
from adaptree.methods import parse
from adaptree.methods.sparse import changed
from adaptree.models.loading import load_base
from adaptree.training.pipeline import train
from adaptree.training.run import Run
from tests.bases import tiny_base, words_csv

TINY = sweep.Recipe(rows=30, validation=10, steps=4, batch_size=8, max_length=32, factors=(1.0,), seeds=1)
ONE, TWO = Corpus("one", test="test"), Corpus("two", test="dev")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base, and two tasks of words, whose labels are other words."""
    root = tmp_path_factory.mktemp("more")
    tiny_base(root / "base")
    lines = words_csv(root / "words.csv", 120).read_text().splitlines()[1:]
    rows = [dict(zip(("text", "label"), line.rsplit(",", 1), strict=True)) for line in lines]
    for name, part, some in (("one", "train", rows[:80]), ("one", "test", rows[80:])):
        put(root / "data" / name / f"{part}.jsonl.xz", "".join(json.dumps(row) + "\n" for row in some))
    random.Random(1).shuffle(rows)
    rows = [{**row, "label": "yes" if row["label"] == "tool" else "no"} for row in rows]
    for part, some in (("train", rows[:80]), ("dev", rows[80:])):
        put(root / "data" / "two" / f"{part}.jsonl.xz", "".join(json.dumps(row) + "\n" for row in some))
    return root


@pytest.fixture
def start(world: Path, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """Runs an experiment on the tiny base; returns its page and its notes."""

    def run(name: str, **options: Any) -> tuple[str, list[str]]:
        told: list[str] = []
        page = experiments.run(
            name, world / "data", tmp_path, base=world / "base", threads=1, command=f"adaptree experiment {name}",
            on_event=lambda event: told.append(event["text"]), **options,
        )  # fmt: skip
        return page, told

    return run


def cells_of(page: str, first: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def resumes(start: Callable[..., tuple[str, list[str]]], name: str, out: Path, count: int) -> str:
    """List an experiment's cells, run them, and run it again, which runs nothing; return its page."""
    told = start(name, dry_run=True)[1]
    assert not (out / ledger.FILE).exists()
    listed = [int(text.split()[0]) for text in told if "cells would be run" in text]
    assert sum(listed) == count
    page, _ = start(name)
    before = (out / ledger.FILE).read_text()
    assert len(before.splitlines()) == count
    assert start(name)[0] == page
    assert (out / ledger.FILE).read_text() == before
    assert page.endswith(f"Made by `adaptree experiment {name}`.\n")
    assert (out / "figure.png").stat().st_size > 5000
    return page


@pytest.mark.slow
def test_every_size_is_set_beside_full_fine_tuning(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tradeoff, "TASKS", (sweep.Task(ONE), sweep.Task(TWO)))
    monkeypatch.setattr(tradeoff, "RECIPE", TINY)
    monkeypatch.setattr(tradeoff, "SIZES", (1, 4))
    monkeypatch.setattr(tradeoff, "RANKS", (2,))
    methods = ["houlsby:1", "houlsby:4", "top:1", "full", "lora:2", "norms", "bitfit", "head"]
    page = resumes(start, "tradeoff", tmp_path, 2 * len(methods))
    assert all("test" in cell["asked"]["rows"] for cell in ledger.read(tmp_path)), "with one candidate nothing is tried"
    score = {(c["asked"]["method"], c["asked"]["task"]): c["found"]["test"]["accuracy"] for c in ledger.read(tmp_path)}
    small = [100 * (score["houlsby(size=1)", name] - score["full", name]) for name in ("one", "two")]
    assert cells_of(page, "`houlsby:1`")[3] == f"{sum(small) / 2:+.1f}"
    assert [float(cell) for cell in cells_of(page, "`full`")[3:]] == [0.0] * 5
    assert int(cells_of(page, "`head`")[1]) < int(cells_of(page, "`norms`")[1])


def test_a_figure_of_the_trade_off_waits_for_a_task_that_all_methods_have(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tradeoff, "TASKS", (sweep.Task(ONE),))
    monkeypatch.setattr(tradeoff, "RECIPE", TINY)
    assert "No task is done by all methods yet." in start("tradeoff", budget=0.0)[0]
    assert not (tmp_path / "figure.png").exists()


@pytest.mark.slow
def test_scales_of_the_first_weights_are_tried(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tuple(row for row in initscale.SWEEP.rows if row.label in ("1e-07", "0.01", "1"))
    assert len(rows) == 3
    small = sweep.Sweep((sweep.Task(ONE), sweep.Task(TWO)), rows, dataclasses.replace(TINY, seeds=2))
    monkeypatch.setattr(initscale, "SWEEP", small)
    monkeypatch.setattr(initscale, "SCALES", (1e-7, 1e-2, 1.0))
    page = resumes(start, "initscale", tmp_path, 3 * 2 * 2)
    assert {choice.tried for row in small.read(tmp_path).values() for choice in row.values()} == {1}
    assert all("±" in cell for cell in cells_of(page, "1e-07")[1:])
    asked = {cell["asked"]["method"] for cell in ledger.read(tmp_path)}
    assert asked == {"houlsby(size=64, init_std=1e-07)", "houlsby(size=64)", "houlsby(size=64, init_std=1.0)"}


def questions(words: list[str], count: int) -> str:
    context = [f"the {words[i % len(words)]} seen near a big saw {'today ' * (i % 3)}there" for i in range(count)]
    paragraphs = [
        {"context": text, "qas": [{"id": str(i), "question": "seen", "answers": [
            {"text": text.split()[1], "answer_start": 4}]}]}
        for i, text in enumerate(context)
    ]  # fmt: skip
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def test_squad_is_answered_by_every_size(
    world: Path, start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["lion", "wolf", "bear", "plum"]
    put(world / "data" / "squad" / "train_subset.json.xz", questions(words, 40))
    put(world / "data" / "squad" / "validation.json.xz", questions(words[::-1], 12))
    recipe = dataclasses.replace(squad.SWEEP.recipe, rows=20, validation=6, epochs=(1,), max_length=32)
    rows = tuple(row for row in squad.SWEEP.rows if row.label in ("houlsby:2", "houlsby:8", "full"))
    monkeypatch.setattr(squad, "SWEEP", sweep.Sweep((squad.TASK,), rows, recipe))
    page = resumes(start, "squad", tmp_path, 3)
    for cell in ledger.read(tmp_path):
        assert set(cell["found"]["test"]) >= {"f1", "exact_match"}
        assert cell["asked"]["task"] == "squad"
    full = next(c["found"] for c in ledger.read(tmp_path) if c["asked"]["method"] == "full")
    assert cells_of(page, "`full`")[3:5] == [f"{100 * full['test'][name]:.1f} (1)" for name in ("f1", "exact_match")]


@pytest.fixture
def two_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"TASKS": (ONE, TWO), "ROWS": 40, "VALIDATION": 10, "STEPS": 20, "BATCH": 8, "MAX_LENGTH": 32}
    for name, value in tiny.items():
        monkeypatch.setattr(forgetting, name, value)
    monkeypatch.setitem(forgetting.WAYS, forgetting.ADAPTERS, "houlsby:4")


@pytest.mark.slow
@pytest.mark.usefixtures("two_arrivals")
def test_a_model_that_is_trained_on_forgets_and_adapters_stay_bit_for_bit(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    page = resumes(start, "forgetting", tmp_path, len(forgetting.WAYS))
    found = {cell["asked"]["way"]: cell["found"]["after"] for cell in ledger.read(tmp_path)}
    adapters, sequence, alone = (found[way] for way in (forgetting.ADAPTERS, forgetting.SEQUENCE, forgetting.ALONE))
    assert adapters[0]["one"] == adapters[1]["one"]
    assert sequence[0]["one"]["digest"] != sequence[1]["one"]["digest"]
    assert sequence[0]["one"] == alone[0]["one"], "the first task has nothing to start from"
    assert sequence[1]["two"]["digest"] != alone[1]["two"]["digest"], "the second starts from the first"
    assert [set(scores) for scores in sequence] == [{"one"}, {"one", "two"}]
    assert [set(scores) for scores in alone] == [{"one"}, {"two"}]
    assert [set(scores) for scores in found[forgetting.JOINT]] == [{"one", "two"}]
    arrival, end = (100 * scores["one"]["score"] for scores in sequence)
    assert cells_of(page, "one")[1:3] == [f"{arrival:.1f}", f"{end:.1f}"]
    start("forgetting", tasks=["two", "one"])
    assert ledger.read(tmp_path)[-1]["asked"]["tasks"] == ["two", "one"], "tasks arrive in the order that is asked for"


@pytest.mark.usefixtures("two_arrivals")
def test_adapters_whose_base_was_changed_fail_the_experiment(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(run: Run) -> Any:
        trained = train(run)
        with torch.no_grad():
            trained[0].base.embeddings.add_(0.1)
        return trained

    monkeypatch.setattr(forgetting, "WAYS", {forgetting.ADAPTERS: "houlsby:4"})
    monkeypatch.setattr(forgetting, "train", spoil)
    for _ in range(2):  # what was found is kept, and fails again
        with pytest.raises(TrainingError, match="'one' are not the same after arrival 2"):
            start("forgetting")
    assert len(ledger.read(tmp_path)) == 1


def test_a_cell_that_fails_is_told_and_not_run_again(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "TASKS", (ONE,))
    page, told = start("masks")  # its texts may be longer than the base's 64 tokens
    assert sum("failed: max_length 128 is more than the base's 64 tokens" in text for text in told) == 2
    assert "No cell is done yet." in page
    assert start("masks")[1] == []


@pytest.mark.slow
def test_masks_are_counted_by_layer_and_kind(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"TASKS": (ONE,), "METHODS": ("lt_sft:0.05", "diff_pruning:0.05"), "ROWS": 30, "VALIDATION": 10, "STEPS": 4}
    for name, value in {**tiny, "MAX_LENGTH": 32}.items():
        monkeypatch.setattr(masks, name, value)
    page = resumes(start, "masks", tmp_path, 2)
    for cell in ledger.read(tmp_path):
        groups = cell["found"]["groups"]
        layers = {group["layer"] for group in groups}
        assert layers == {"0", "1", masks.OUTSIDE}
        inside = {group["kind"] for group in groups if group["layer"] == "0"}
        assert inside == {"query", "key", "value", "attention output", "feed-forward in", "feed-forward out", "norms",
                          "biases"}  # fmt: skip
        assert {group["kind"] for group in groups if group["layer"] == masks.OUTSIDE} == {"norms", "embeddings"}
        by = masks.shares([cell], "layer", "kind")
        sizes = np.array([group["of"] for group in groups])
        shares = [by[group["layer"], group["kind"]] for group in groups]
        assert np.average(shares, weights=sizes) == pytest.approx(1), "a uniform mask has 1 everywhere"
    assert page.count("| one | lt_sft |") == 2


def test_changed_weights_are_counted_where_they_are(world: Path) -> None:
    base = load_base(world / "base")
    rows = [{"text": f"{word} {i}", "label": word} for i in range(12) for word in ("lion", "saw")]
    task = train(Run.of(rows, base=base, method="rand_sft:0.05", epochs=1, baselines=False))[0].task
    counts = changed(base.hooked.frozen, task.weights)
    assert sum(counts.values()) == len(task.weights["sparse.values"])
    filled = {**task.weights, "sparse.values": torch.ones(len(task.weights["sparse.values"]))}
    new = parse(task.record.method).weights(base.hooked.sites, base.hooked.frozen, filled)
    for name, count in counts.items():
        moved = new[name] != base.hooked.frozen[name] if name in new else torch.zeros(1)
        assert int(moved.sum()) == count


def test_a_run_starts_from_another_task_of_the_same_method(world: Path) -> None:
    base = load_base(world / "base")
    rows = [{"text": f"{word} {i}", "label": word} for i in range(20) for word in ("lion", "saw")]
    options: dict[str, Any] = {"base": base, "baselines": False, "batch_size": 8, "objective": "cross-entropy"}
    first = train(Run.of(rows, method="full", epochs=1, **options))[0].task
    still = train(Run.of(rows[:30], method="full", epochs=1, lr=1e-12, start=first, **options))[0].task
    body = [name for name in first.weights if not name.startswith("head.")]
    assert all(torch.allclose(first.weights[name], still.weights[name], atol=1e-6) for name in body)
    assert not torch.equal(first.weights["head.weight"], still.weights["head.weight"]), "the head is a new one"
    moved = train(Run.of(rows, method="full", epochs=1, lr=1e-12, **options))[0].task
    assert not all(torch.allclose(first.weights[name], moved.weights[name], atol=1e-6) for name in body)
    with pytest.raises(UsageError, match="cannot be where houlsby"):
        train(Run.of(rows, method="houlsby:4", epochs=1, start=first, **options))
    with pytest.raises(UsageError, match="one task, alone"):
        Run.of(rows, method="full", start=first, search=3)


@pytest.mark.slow
def test_dropout_is_compared_for_the_same_seeds(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropout, "TASKS", (ONE, TWO))
    monkeypatch.setattr(dropout, "METHODS", ("full", "lt_sft"))
    for name, value in (("ROWS", 30), ("VALIDATION", 10), ("STEPS", 4)):
        monkeypatch.setattr(dropout, name, value)
    page = start("dropout")[0]
    cells = ledger.read(tmp_path)
    assert len(cells) == 2 * 2 * 2 * 2
    assert start("dropout")[0] == page
    assert len(ledger.read(tmp_path)) == len(cells), "nothing is run twice"
    accuracy = {
        way: [c["found"]["test"]["accuracy"] for c in cells
              if (c["asked"]["task"], c["asked"]["method"], c["asked"]["dropout"]) == ("one", "full", way)]
        for way in (False, True)
    }  # fmt: skip
    shown = cells_of(page, "`full`")[1]
    assert shown == " / ".join(f"{100 * sum(accuracy[way]) / 2:.1f}" for way in (False, True))
    assert page == start("dropout", redraw=True)[0]
