"""Two versions side by side."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree import api
from adaptree.cli import main
from adaptree.errors import TaskNotFound, UsageError
from adaptree.models.base import Base
from adaptree.tasks.store import Store
from tests.bases import tiny_base, words_csv


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def folder(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a weak and a good version of a task, one of numbers, one of tags, and files to ask."""
    folder = tmp_path_factory.mktemp("diff")
    data, store = words_csv(folder / "words.csv"), Store(folder / "store")
    words_csv(folder / "test.csv", 60, seed=3)
    rng = random.Random(0)
    with (folder / "numbers.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([f"pear {n} the", rng.random()] for n in range(40))])
    tagged = [{"tokens": ["the", word, "is", "there"], "tags": ["O", tag, "O", "O"]}
              for word, tag in (("lion", "B-BEAST"), ("saw", "B-TOOL"))] * 12  # fmt: skip
    (folder / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tagged))
    how: dict[str, Any] = {"base": base, "store": store, "baselines": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptree.reports.figures.figures", lambda record: {})
        at.train(data, name="words", method="houlsby:2", epochs=1, lr=1e-6, **how)
        at.train(data, name="words", method="houlsby:4", epochs=6, lr=3e-3, **how)
        at.train(folder / "numbers.csv", name="numbers", method="houlsby:2", epochs=1, **how)
        at.train(folder / "numbers.csv", name="numbers", method="houlsby:2", epochs=3, lr=3e-3, **how)
        at.train(folder / "tags.jsonl", name="tags", method="houlsby:2", epochs=1, lr=1e-6, **how)
        at.train(folder / "tags.jsonl", name="tags", method="houlsby:2", epochs=9, lr=1e-2, **how)
    return folder


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder / "store")


def test_only_what_differs_is_named(store: Store) -> None:
    found = api.diff(store, "words@1", "words")
    facts = {fact.what: fact for fact in found.facts}
    assert (found.a, found.b, found.same_weights, found.answers) == ("words@1", "words@2", False, None)
    assert (facts["method"].a, facts["method"].b) == tuple(store[f"words@{n}"].record.method for n in (1, 2))
    assert (facts["settings.lr"].a, facts["settings.lr"].b) == (1e-6, 3e-3)
    assert facts["metrics.validation.accuracy"].change is not None
    assert facts["metrics.validation.accuracy"].change > 0
    assert facts["parameters.adapters"].change == (
        store["words@2"].record.parameters["adapters"] - store["words@1"].record.parameters["adapters"]
    )
    assert "digest" in facts
    for same in ("kind", "base.fingerprint", "data.digest", "seed", "labels", "name", "version", "history"):
        assert same not in facts


def test_a_version_and_its_like_differ_in_nothing_that_counts(store: Store, tmp_path: Path) -> None:
    from adaptree.tasks.versions import rollback

    other = Store(tmp_path / "store")
    for version in (1, 2):
        other.add(store[f"words@{version}"])
    rollback(other, "words@1")
    found = api.diff(other, "words@1", "words@3")
    assert found.same_weights
    assert {fact.what for fact in found.facts} <= {"created", "extra.rolled_back_from"}
    assert next(fact.a for fact in found.facts if fact.what.startswith("extra")) is None


def test_the_answers_that_changed_and_who_was_right(store: Store, folder: Path) -> None:
    found = api.diff(store, "words@1", "words@2", folder / "test.csv", threads=1).answers
    assert found is not None
    labels = column(folder / "test.csv", "label")
    answers = [[p.label for p in opened(store, f"words@{n}").predict(column(folder / "test.csv"))] for n in (1, 2)]
    changed = [i for i, (a, b) in enumerate(zip(*answers, strict=True)) if a != b]
    assert found.rows == 60
    assert [each.row - 1 for each in found.changed] == changed
    assert len(changed) > 10
    for each in found.changed:
        gold = labels[each.row - 1]
        assert each.gold == gold
        assert (each.a, each.b) == (answers[0][each.row - 1], answers[1][each.row - 1])
        assert each.better == ("a" if each.a == gold else "b" if each.b == gold else "")
    assert found.better("b") > found.better("a")
    right = [sum(a == gold for a, gold in zip(each, labels, strict=True)) / 60 for each in answers]
    assert found.scores["accuracy"] == {"a": pytest.approx(right[0]), "b": pytest.approx(right[1])}


def opened(store: Store, reference: str) -> Any:
    from adaptree.models.opening import open_task

    return open_task(store, reference)


def column(path: Path, name: str = "text") -> list[str]:
    return [row[name] for row in csv.DictReader(path.read_text().splitlines())]


def test_a_file_without_labels_shows_what_changed(store: Store, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.csv"
    file.write_text("text\n" + "".join(f"{text}\n" for text in column(folder / "test.csv")))
    found = api.diff(store, "words@1", "words@2", file).answers
    labelled = api.diff(store, "words@1", "words@2", folder / "test.csv").answers
    assert found is not None
    assert labelled is not None
    assert [(each.row, each.a, each.b) for each in found.changed] == [(e.row, e.a, e.b) for e in labelled.changed]
    assert {each.gold for each in found.changed} == {None}
    assert found.scores == {}
    assert found.unlabelled


def test_unknown_labels_are_nobodys_answer(store: Store, folder: Path, tmp_path: Path) -> None:
    rows = (folder / "test.csv").read_text().splitlines()
    (tmp_path / "odd.csv").write_text("\n".join([*rows[:30], *(f"{row.partition(',')[0]},gas" for row in rows[30:])]))
    found = api.diff(store, "words@1", "words@2", tmp_path / "odd.csv").answers
    assert found is not None
    late = [each for each in found.changed if each.row > 29]
    assert late
    assert {(each.gold, each.better) for each in late} == {("?", "")}


def test_numbers_and_tags_are_compared_too(store: Store, folder: Path) -> None:
    numbers = api.diff(store, "numbers@1", "numbers@2", folder / "numbers.csv").answers
    assert numbers is not None
    assert len(numbers.changed) > 20
    first = numbers.changed[0]
    gold = float(str(first.gold))
    assert first.better == ("a" if abs(first.a - gold) < abs(first.b - gold) else "b")
    tags = api.diff(store, "tags@1", "tags@2", folder / "tags.jsonl").answers
    assert tags is not None
    assert tags.better("b") > tags.better("a")


def test_what_cannot_be_compared_is_refused(store: Store, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"is of kind classify.*of kind regress"):
        api.diff(store, "words", "numbers", folder / "test.csv")
    assert "kind" in {fact.what for fact in api.diff(store, "words", "numbers").facts}
    with pytest.raises(TaskNotFound, match="Did you mean 'words'"):
        api.diff(store, "word", "words")


def test_the_command(store: Store, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.tag("words@1", "first")
    words = ["diff", "words@first", "words", "--store", str(store.path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "words@1" in out
    assert "settings.lr" in out
    assert "3e-06" not in out
    assert main([*words, "--data", str(folder / "test.csv")]) == 0
    assert "of 60 answers changed: words@1 is better in" in capsys.readouterr().out
    assert main([*words, "--data", str(folder / "test.csv"), "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["answers"]["count"] == len(values["answers"]["changed"])
    for form in ("csv", "jsonl"):
        assert main([*words, "--format", form]) == 0
        assert "settings.lr" in capsys.readouterr().out


def test_a_tag_is_read_in_compositions(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.tag("words@1", "first")
    where = ["--store", str(store.path)]
    assert main(["predict", "average(words@first, words@first)", "the lion", *where]) == 0
    assert main(["compose", "average(words@first, words@first)", "--name", "twice", *where]) == 0
    assert store["twice"].record.extra["made_of"] == "average(words@1, words@1)"
    assert main(["predict", "words@first", "the lion", *where]) == 0
