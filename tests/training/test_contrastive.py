"""Contrastive training for few rows a label: its loss, when it is chosen, and what the task is trained on."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.data.events import Event
from adaptree.errors import UsageError
from adaptree.kinds.multilabel import Multilabel
from adaptree.tasks.store import Store
from adaptree.training import contrastive
from adaptree.training.contrastive import contrastive_loss
from adaptree.training.objective import FEW


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base"), mask=True))


def train(data: Any, base: at.Base, **options: Any) -> at.Bound:
    return at.train(data, base=base, **({"method": "houlsby:8", "baselines": False, "lr": 5e-3} | options))


def test_the_loss_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    vectors, labels = torch.randn(7, 5, dtype=torch.float64), [0, 0, 0, 1, 1, 2, 0]
    alike = torch.tensor([[float(a == b) for b in labels] for a in labels])
    z = vectors / vectors.norm(dim=1, keepdim=True)
    found = contrastive_loss(vectors, alike, 0.1)
    for i, label in enumerate(labels):
        others = [a for a in range(7) if a != i]
        total = math.log(sum(math.exp(float(z[i] @ z[a]) / 0.1) for a in others))
        positives = [float(z[i] @ z[p]) / 0.1 - total for p in others if labels[p] == label]
        wanted = -sum(positives) / len(positives) if positives else 0.0  # the only one of its label
        assert float(found[i]) == pytest.approx(wanted, abs=1e-9)


def test_several_labels_are_alike_by_the_share_that_they_have_in_common() -> None:
    alike = Multilabel(("a", "b", "c")).alike([["a", "b"], ["b"], ["c"], []])
    assert alike[0].tolist() == pytest.approx([1, 0.5, 0, 0])
    assert alike[3].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("memory", [{"accumulate": 3}, {"most_tokens": 40}])
def test_a_batch_that_is_computed_in_parts_gives_the_same_training(
    memory: dict[str, int], base: at.Base, tmp_path: Path
) -> None:
    data = words_csv(tmp_path / "few.csv", 24)
    options = {"objective": "contrastive", "max_steps": 4, "validation": data}
    whole, parts = (train(data, base, **options, **more).task.weights for more in ({}, memory))
    for name, tensor in whole.items():
        if not name.startswith(("head.", "probe.")):
            torch.testing.assert_close(parts[name], tensor, atol=2e-5, rtol=1e-4)


def test_every_batch_has_its_labels_in_equal_shares() -> None:
    strata = np.repeat([0, 1, 2], [8, 8, 16])
    order = contrastive._spread(strata, np.random.default_rng(0))
    assert sorted(order) == list(range(32))
    for start in range(0, 32, 8):
        counts = np.bincount(strata[order[start : start + 8]], minlength=3)
        assert abs(counts - [2, 2, 4]).max() <= 1


def test_few_rows_a_label_are_contrasted_and_more_are_not(base: at.Base, tmp_path: Path) -> None:
    def objective(rows: int, **options: Any) -> str:
        data = words_csv(tmp_path / "words.csv", rows)
        notes: list[Event] = []
        found = train(data, base, on_event=notes.append, **options).task.record.settings["objective"]
        said = [event["text"] for event in notes if event["event"] == "note" and "--objective" in event["text"]]
        assert bool(said) == (found == "contrastive")
        return str(found)

    assert objective(24) == "contrastive"
    assert objective(3 * FEW + 3, patience=1) == "cross-entropy"
    assert objective(24, epochs=2) == "cross-entropy"  # the user says how long: as the paper trains
    assert objective(3 * FEW + 3, objective="head-first", patience=1) == "head-first"


def test_few_rows_are_scored_on_rows_held_out_and_then_all_are_learned(base: at.Base, tmp_path: Path) -> None:
    data = words_csv(tmp_path / "few.csv", 30)
    record = train(data, base).task.record
    assert record.settings["refitted"]
    assert record.data["train"] + record.data["validation"] == 30
    with data.open() as file:
        rows = list(csv.DictReader(file))
    steps = [event for event in _events(data, base) if event["event"] == "step"]
    assert {event["total"] for event in steps} == {
        contrastive.STEPS * record.data["train"], contrastive.STEPS // contrastive.CONTINUED * 30
    }  # fmt: skip
    # The score is of the first training: the same as with the two parts in files of their own.
    held = _parts(data, base)
    alone = train([rows[i] for i in held[0]], base, validation=[rows[i] for i in held[1]])
    assert alone.task.record.metrics == record.metrics
    assert "refitted" not in alone.task.record.settings


def _events(data: Path, base: at.Base) -> list[Event]:
    events: list[Event] = []
    train(data, base, on_event=events.append)
    return events


def _parts(data: Path, base: at.Base) -> tuple[Sequence[int], Sequence[int]]:
    from adaptree.data.split import split
    from adaptree.kinds.reading import open_data

    first, second = split(open_data(data))
    return first.tolist(), second.tolist()


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(base: at.Base, tmp_path: Path) -> None:
    data = words_csv(tmp_path / "few.csv", 24)
    first, second, third = (train(data, base, seed=seed).task.weights for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("when", [2, contrastive.STEPS + 3])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(when: int, base: at.Base, tmp_path: Path) -> None:
    data = words_csv(tmp_path / "few.csv", 24)
    whole = train(data, base, store=Store(tmp_path / "a"), name="t").task.weights

    class Stop(Exception):
        pass

    steps = 0

    def stop(event: Event) -> None:
        nonlocal steps
        steps += event["event"] == "step"
        if steps == when:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptree.training.loop.CHECKPOINT_SECONDS", -1.0)
        with pytest.raises(Stop):
            train(data, base, store=Store(tmp_path / "b"), name="t", on_event=stop)
    resumed = train(data, base, store=Store(tmp_path / "b"), name="t", resume=True).task.weights
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "head"}, "head"),
        ({"method": "lt_sft:0.1"}, "stages"),
        ({"windows": True}, "--windows"),
        ({"epochs": 3}, "--max-steps"),
        ({"search": 2}, "search"),
    ],
)
def test_contrastive_training_is_refused_with_the_reason(
    options: dict[str, Any], why: str, base: at.Base, tmp_path: Path
) -> None:
    data = words_csv(tmp_path / "few.csv", 24)
    with pytest.raises(UsageError, match=why):
        train(data, base, objective="contrastive", **options)


def test_numbers_have_no_labels_to_contrast(base: at.Base) -> None:
    rows = [{"text": f"the {'old ' * (i % 5)}lion", "label": i / 7} for i in range(30)]
    with pytest.raises(UsageError, match="kind regress"):
        train(rows, base, objective="contrastive")


def test_pairs_and_several_labels_can_be_contrasted(base: at.Base) -> None:
    words = ["lion", "saw", "plum", "wolf"]
    pairs = [{"a": f"the {words[i % 4]}", "b": f"a {words[i % 3]}", "label": "yn"[i % 2]} for i in range(20)]
    several = [{"text": f"{words[i % 4]} {words[i % 3]}", "label": [words[i % 4], words[i % 3]]} for i in range(20)]
    for rows, options in ((pairs, {"text": "a", "text_pair": "b"}), (several, {})):
        bound = train(rows, base, label="label", **options)
        assert bound.task.record.settings["objective"] == "contrastive"


@pytest.mark.parametrize("method", ["lora:2", "norms", "pfeiffer:4", "bitfit", "full", "ia3", "pal(size=16, heads=4)"])
def test_any_method_can_be_trained_by_contrast(method: str, base: at.Base, tmp_path: Path) -> None:
    bound = train(words_csv(tmp_path / "few.csv", 24), base, method=method, lr=None)
    losses = bound.task.record.history[0]
    assert losses["steps"] == contrastive.STEPS


DESCRIBED = {"fruit": "apple pear plum", "tool": "hammer saw drill", "beast": "lion wolf bear"}


def test_descriptions_of_labels_are_learned_from_like_further_rows(base: at.Base, tmp_path: Path) -> None:
    few = [{"text": f"the old {word}", "label": label} for label in DESCRIBED for word in ("and", "or", "very")]
    held = [{"text": text, "label": label} for label, words in DESCRIBED.items() for text in words.split()]
    options = {"validation": held, "objective": "contrastive"}
    said: list[Event] = []
    plain = train(few, base, **options)
    told = train(few, base, descriptions=DESCRIBED, on_event=said.append, **options)
    rows = [*few, *({"text": text, "label": label} for label, text in DESCRIBED.items())]
    by_hand = train(rows, base, **options)
    score = {k: t.task.record.metrics["validation"]["accuracy"] for k, t in {"plain": plain, "told": told}.items()}
    assert score["told"] > score["plain"], "the texts themselves tell nothing"
    assert any("3 descriptions" in str(event.get("text")) for event in said)
    assert told.task.record.extra["descriptions"] == DESCRIBED
    assert told.task.record.data["rows"] == plain.task.record.data["rows"]
    assert all(torch.equal(told.task.weights[name], p) for name, p in by_hand.task.weights.items())


def test_descriptions_are_read_from_a_file_and_the_task_then_learns_held_out_rows_too(
    base: at.Base, tmp_path: Path
) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("fruit: apple pear\ntool: hammer saw\n")
    told = train(words_csv(tmp_path / "few.csv", 24), base, descriptions=path, threads=1)
    assert told.task.record.extra["descriptions"] == {"fruit": "apple pear", "tool": "hammer saw"}
    assert told.task.record.settings["refitted"]


@pytest.mark.parametrize(
    ("more", "data", "why"),
    [
        ({"descriptions": {"frut": "x"}}, None, "no label 'frut'.*Did you mean 'fruit'"),
        ({"descriptions": {"fruit": "x"}, "objective": "cross-entropy"}, None, "the objective is cross-entropy"),
        ({"descriptions": "nowhere.txt"}, None, "no file 'nowhere.txt'"),
        ({"descriptions": {"a": "x"}}, [(f"old {i}", "new", "ab"[i % 2]) for i in range(9)], "one label for each text"),
        ({"descriptions": {"a": "x"}}, [(f"old {i}", i / 7) for i in range(9)], "one label for each text"),
    ],
)
def test_descriptions_that_are_of_no_use_are_refused(
    more: dict[str, Any], data: Any, why: str, base: at.Base, tmp_path: Path
) -> None:
    names = ("text_a", "text_b", "label") if data and len(data[0]) == 3 else ("text", "label")
    rows = [dict(zip(names, row, strict=True)) for row in data] if data else words_csv(tmp_path / "few.csv", 24)
    with pytest.raises(at.AdaptreeError, match=why):
        train(rows, base, **more)
