"""Kinds, fusion, transfer and languages: experiments whose cells train tasks, some on top of other cells' tasks."""

from __future__ import annotations

import dataclasses
import json
import lzma
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptree.analysis import experiments
from adaptree.analysis.experiments import fusion, kinds, languages, ledger, transfer
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.analysis.experiments.setup import Setup
from adaptree.analysis.experiments.trainings import Trainer
from adaptree.models.opening import open_task
from adaptree.tasks.store import Store
from adaptree.training import checkpoint, loop
from tests.bases import tiny_base

WORDS = ("lion", "bear", "wolf", "plum")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))


def put_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    put(path, "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("built") / "base", mask=True)


@pytest.fixture
def start(base: Path, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """Runs an experiment on the tiny base; returns its page and its notes."""

    def run(name: str, **options: Any) -> tuple[str, list[str]]:
        told: list[str] = []
        page = experiments.run(
            name, tmp_path / "data", tmp_path / "out", base=base, threads=1, command=f"adaptree experiment {name}",
            on_event=lambda event: told.append(event["text"]), **options,
        )  # fmt: skip
        return page, told

    return run


@pytest.fixture
def three_tasks(tmp_path: Path) -> tuple[Corpus, ...]:
    """Tasks a, b and c, whose labels are words of their texts."""
    for name, words in {"a": ("lion", "saw"), "b": ("bear", "plum"), "c": ("wolf", "hammer")}.items():
        rows = [{"text": f"{i} {word} {name}", "label": word} for i in range(40) for word in words]
        put_rows(tmp_path / "data" / name / "train.jsonl.xz", rows)
        put_rows(tmp_path / "data" / name / "test.jsonl.xz", rows[:20])
    return tuple(Corpus(name, test="test") for name in "abc")


def resumes(start: Callable[..., tuple[str, list[str]]], name: str, out: Path) -> tuple[str, list[ledger.Found]]:
    """List an experiment's cells, run them, and again, which runs nothing, and redraw; return its page and cells."""
    told = start(name, dry_run=True)[1]
    (count,) = [int(text.split()[0].replace(",", "")) for text in told if "cells would be run" in text]
    assert not (out / ledger.FILE).exists()
    assert f"{count} of {count} cells are open" in start(name, budget=0.0)[1][-1]
    page, told = start(name)
    cells = ledger.read(out)
    assert [cell.get("error") for cell in cells] == [None] * count, told
    before = (out / ledger.FILE).read_text()
    assert start(name)[0] == page
    assert (out / ledger.FILE).read_text() == before, "nothing is run twice"
    assert start(name, redraw=True)[0] == page
    assert not any((out / "checkpoints").iterdir())
    return page, cells


def of(cells: list[ledger.Found], **asked: Any) -> list[ledger.Found]:
    return [cell for cell in cells if all(cell["asked"].get(name) == value for name, value in asked.items())]


@pytest.mark.slow
def test_a_small_task_is_fused_from_single_and_joint_adapters(
    start: Callable[..., tuple[str, list[str]]], three_tasks: tuple[Corpus, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tiny = {
        "TARGETS": three_tasks[2:], "SOURCES": three_tasks, "PFEIFFER": "pfeiffer:4", "STEPS": 6, "SEEDS": 2,
        "HOULSBY": "houlsby_feedforward(size=4, norms=false)", "MAX_LENGTH": 16, "VALIDATION": 10,
    }  # fmt: skip
    for name, value in tiny.items():
        monkeypatch.setattr(fusion, name, value)
    page, cells = resumes(start, "fusion", tmp_path / "out")
    # single adapters of two forms, the joint ones, the head; with each seed full, again, two fusions, that of the joint
    assert len(cells) == 2 * (2 + 2) + 1 + 1 + 2 * (1 + 1 + 2 + 1)
    (line,) = [line for line in page.splitlines() if line.startswith("| c |")]
    assert line.count(" ± ") == line.count("(2)") == len(fusion.COLUMNS) - 2, "the head and the joint adapter have one"
    (fused,) = of(cells, what=fusion.FUSION, seed=1)
    own, *others = fused["asked"]["fuse"]
    (single,) = of(cells, what=fusion.ADAPTER, task="c", seed=1)
    assert own == f"{ledger.digest(single['asked'])}/c"
    assert [name.partition("/")[2] for name in others] == ["a", "b"]
    assert fused["found"]["attention"]["adapters"] == ["c", "a", "b"]
    (again,) = of(cells, what=fusion.AGAIN, seed=1)
    assert again["asked"]["start"] == own
    scores = fusion.scores(cells)["c"]
    gain = sum(scores["fusion"]) / 2 - sum(scores["adapter"]) / 2
    assert f"| fusion | {gain:+.1f} (" in page
    assert [page.count(f"| fusion | c | {seed} | the most attended | ") for seed in range(3)] == [1, 1, 0]
    assert (tmp_path / "out" / "attention.png").is_file()


@pytest.mark.slow
def test_what_suggest_says_is_set_beside_what_sources_bring(
    start: Callable[..., tuple[str, list[str]]], base: Path, three_tasks: tuple[Corpus, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tiny = {
        "TASKS": three_tasks, "FEW": 30, "METHOD": "pfeiffer:4", "STEPS": 20, "FEW_STEPS": 4, "MAX_LENGTH": 16,
        "VALIDATION": 10,
    }  # fmt: skip
    for name, value in tiny.items():
        monkeypatch.setattr(transfer, name, value)
    monkeypatch.setattr(transfer, "clear", lambda cells: dict.fromkeys("abc", True))
    page, cells = resumes(start, "transfer", tmp_path / "out")
    assert len(cells) == 3 + 3 * (1 + 2 * 3)
    (cell,) = of(cells, what=transfer.TARGET, task="a", below="b", seed=1)
    store = Store(tmp_path / "out" / "store")
    bound = open_task(store, f"{ledger.digest(cell['asked'])}/a", base=base)
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows" / "a-test.jsonl").read_text().splitlines()]
    answers = bound.predict([row["text"] for row in rows])
    right = [answer.scores[row["label"]] for row, answer in zip(rows, answers, strict=True)]
    assert cell["found"]["nats"] == pytest.approx(-sum(map(math.log, right)) / len(right), abs=1e-5)
    assert cell["found"]["majority"] == 0.5
    first, second = transfer.measured(cells)
    mean = transfer.mean_over([first, second])
    assert mean["a"]["b"]["nats"] == pytest.approx((first["a"]["b"]["nats"] + second["a"]["b"]["nats"]) / 2)
    assert transfer.ceiling([first, first], "nats") == pytest.approx([1.0] * 3)
    assert transfer.ceiling([first, second], "nats")[0] in (-1.0, 0.0, 1.0), "two sources rank alike or not"
    assert "nats: ceiling" in page
    assert (tmp_path / "out" / "gains.png").is_file()


def test_a_source_counts_if_it_is_above_the_commonest_label_by_its_standard_error() -> None:
    def source(name: str, accuracy: float, majority: float) -> ledger.Found:
        found = {"test": {"accuracy": accuracy}, "majority": majority, "test_rows": 400, "train_rows": 10}
        return {"asked": {"what": transfer.SOURCE, "task": name}, "found": found}

    cells = [source("good", 0.60, 0.5), source("chance", 0.52, 0.5), source("worse", 0.4, 0.5)]
    assert transfer.clear(cells) == {"good": True, "chance": False, "worse": False}  # the standard error is 0.025


@pytest.mark.slow
def test_a_language_nobody_labelled_is_answered_in_every_way(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    tags = [{"tokens": [f"{i}", word, "there"], "tags": ["O", "B-X", "O"]} for i in range(8) for word in WORDS]
    for name in ("panx/en.train", "panx/qu.train", "panx/qu.validation"):
        put_rows(data / f"{name}.jsonl.xz", tags)
    put_rows(data / "mnli" / "train.jsonl.xz", [{"text_a": f"the {word} {i}"} for i in range(12) for word in WORDS])
    put(data / "quechua_text" / "quy_open.txt.xz", "".join(f"a {word} {i}\n" for i in range(12) for word in WORDS))
    small = {"pfeiffer:48": "pfeiffer:4", "pfeiffer:192": "pfeiffer:8"}
    ways = tuple(
        dataclasses.replace(
            way, task=small.get(way.task, way.task), language=small.get(way.language or "", way.language)
        )
        for way in languages.WAYS
    )
    tiny = {"LANGUAGE_STEPS": 4, "TASK_STEPS": 4, "FEW_STEPS": 4, "MAX_LENGTH": 16, "SEEDS": 2, "WAYS": ways}
    texts = {name: path for name, path in languages.TEXTS.items() if name != "sw"}
    for name, value in {**tiny, "TARGETS": languages.TARGETS[:1], "TEXTS": texts}.items():
        monkeypatch.setattr(languages, name, value)
    page, cells = resumes(start, "languages", tmp_path / "out")
    lines = [line for line in page.splitlines() if line.startswith("| (")]
    assert [line[:5] for line in lines] == ["| (a)", "| (b)", "| (b)", "| (c)", "| (c)", "| (d)", "| (d)", "| (e)"]
    assert all("(2)" in line for line in lines)
    assert "32 sentences" in page
    assert "pieces of a word" in page
    assert len(of(cells, what=languages.LANGUAGE)) == 3 * 2, "a language is learned once, whatever the seeds"
    (head,) = of(cells, what=languages.HEAD)
    assert set(head["found"]["before"]) == {"en", "qu"}
    store = Store(tmp_path / "out" / "store")
    shared = store[f"{ledger.digest(head['asked'])}/en"]
    for cell in of(cells, what=languages.LANGUAGE):
        own = store[f"{ledger.digest(cell['asked'])}/{cell['asked']['task']}"]
        heads = [name for name in shared.weights if name.startswith("head.")]
        assert len(heads) == 5
        assert all(bool((own.weights[name] == shared.weights[name]).all()) for name in heads)
        after = cell["found"]["test"]["perplexity"]
        before = head["found"]["before"][cell["asked"]["task"]]
        assert f"| {before:.0f} | {after:.0f} |" in page


@pytest.mark.slow
def test_kinds_are_trained_and_their_cells_are_kept(
    start: Callable[..., tuple[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [{"tokens": ["the", word, "there"], "tags": ["O", "B-X", "O"]} for word in ("lion", "bear", "wolf") * 10]
    put_rows(tmp_path / "data" / "t" / "train.jsonl.xz", [{**row, "n": i} for i, row in enumerate(tags)])
    recipe = kinds.Recipe("t", "t/train.jsonl.xz", None, epochs=1, rows=16, test_rows=5, methods=("head", "houlsby:4"))
    monkeypatch.setattr(kinds, "RECIPES", (recipe,))
    page, _ = resumes(start, "kinds", tmp_path / "out")
    assert page.count("| t | tag | base | 16, 5 |") == 2
    twice = start("kinds", seeds=2)[0]
    assert [line.split(" | ")[6] for line in twice.splitlines() if line.startswith("| t ")] == ["0", "1", "0", "1"]
    monkeypatch.setattr(kinds, "RECIPES", (dataclasses.replace(recipe, kind="answer"),))
    assert any("failed: " in text and "kind answer" in text for text in start("kinds")[1])


@pytest.fixture
def training(base: Path, three_tasks: tuple[Corpus, ...], tmp_path: Path) -> Callable[[], Any]:
    """Makes the cell of a training of four epochs on 80 rows."""
    source = tmp_path / "data" / "a" / "train.jsonl.xz"
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(lzma.decompress(source.read_bytes()))
    trainer = Trainer.of(Setup(tmp_path, tmp_path / "out", base=base, threads=1), 8, 16)
    return lambda: trainer.cell("adapter", "a", {"train": rows, "validation": rows, "test": rows}, "pfeiffer:4", 4)


def test_a_training_that_was_killed_goes_on_from_its_checkpoint(
    training: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training().run()
    before = Store(tmp_path / "out" / "store")[training().name].weights
    steps: list[int] = []
    step = loop.Trainer._step

    def killed(self: loop.Trainer, *given: Any) -> None:
        steps.append(self.state.step)
        if len(steps) == 25:
            raise MemoryError
        step(self, *given)

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop.Trainer, "_step", killed)
    with pytest.raises(Exception, match="memory"):
        training().run()
    folder = tmp_path / "out" / "checkpoints" / training().key
    assert (folder / checkpoint.FILE).is_file()
    again = training().run()
    assert steps[25] == steps[24] > 20, "it went on where it was"
    assert not folder.exists()
    timed = ("seconds", "cpu_seconds")
    assert {k: v for k, v in again.items() if k not in timed} == {k: v for k, v in whole.items() if k not in timed}
    after = Store(tmp_path / "out" / "store")[training().name].weights
    assert all(bool((after[name] == before[name]).all()) for name in before)


def test_a_task_that_is_no_longer_in_the_store_is_trained_again(training: Callable[[], Any], tmp_path: Path) -> None:
    first = training().task().weights
    Store(tmp_path / "out" / "store").remove(training().name)
    again = training().task().weights
    assert all(bool((again[name] == first[name]).all()) for name in first)


def test_a_cell_waits_for_those_that_it_needs(tmp_path: Path) -> None:
    ran: list[str] = []
    told: list[str] = []

    def cell(name: str, *needs: ledger.Cell) -> ledger.Cell:
        return ledger.Cell({"name": name}, lambda: ran.append(name) or {"score": 1}, 1, "x", needs)

    first = cell("first")
    setup = Setup(tmp_path, tmp_path, on_event=lambda event: told.append(event["text"]))
    assert [line["asked"]["name"] for line in ledger.run([cell("second", first), first], setup)] == ["second", "first"]
    assert ran == ["first", "second"]
    assert [line["asked"]["name"] for line in ledger.run([first, cell("third", cell("missing"))], setup)] == ["first"]
    assert "1 of 2 cells are open" in told[-1]
    assert ran == ["first", "second"]
