"""The default base, for real: a file becomes a task, and the next one does not disturb it."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch

import adaptree as at
import adaptree.analysis.demo
from adaptree.data.read import rows
from adaptree.models.fingerprint import fingerprint

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def base() -> at.Base:
    return at.load_base()


def data_folder(variable: str) -> Path:
    folder = os.environ.get(variable)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{variable} does not name a folder of data")
    return Path(folder)


def head_of(name: str, count: int, target: Path) -> Path:
    """The first rows of a demo file, as a file."""
    with adaptree.analysis.demo.data(name)[0].open(newline="") as file, target.open("w", newline="") as out:
        csv.writer(out).writerows(row for i, row in enumerate(csv.reader(file)) if i <= count)
    return target


def test_two_tasks_in_turn_and_the_first_keeps_its_bits(base: at.Base, tmp_path: Path) -> None:
    store = at.Store(tmp_path / "store")
    texts = [row["text"] for _, row in rows(adaptree.analysis.demo.data("tickets")[1])]
    first = at.train(head_of("tickets", 120, tmp_path / "t.csv"), base=base, name="tickets", store=store, epochs=6)
    before = first.logits(texts)
    at.train(
        head_of("reviews", 60, tmp_path / "r.csv"), base=base, name="reviews", store=store, epochs=2, baselines=False
    )
    assert torch.equal(base.bind(store["tickets"]).logits(texts), before)
    assert fingerprint(base.hooked.backbone) == base.fingerprint == at.load_base().fingerprint
    scores = at.evaluate(base.bind(store["tickets"]), adaptree.analysis.demo.data("tickets")[1])
    assert scores["metrics"]["test"]["accuracy"] > 0.6
    record = store["tickets"].record
    assert record.parameters["adapters"] == 12 * (2 * 64 * 384 + 384 + 64)
    assert record.parameters["norms"] == 13 * 2 * 384
    assert record.parameters["head"] == 8 * 384 + 8
    file = store.path_of("tickets") / "task.safetensors"
    weights = 4 * record.parameters["trained"]
    assert file.stat().st_size <= 1.05 * weights + 4096


def test_a_text_s_logits_are_the_same_bits_alone_and_among_others(base: at.Base, tmp_path: Path) -> None:
    bound = at.train(head_of("reviews", 60, tmp_path / "r.csv"), base=base, epochs=1, baselines=False)
    texts = [row["text"] for _, row in rows(adaptree.analysis.demo.data("reviews")[1])]
    together = bound.logits(texts)
    for i in range(0, len(texts), 7):
        assert torch.equal(bound.logits([texts[i]])[0], together[i])
    assert torch.equal(bound.logits(texts[::-1], batch_size=5).flip(0), together)


@pytest.mark.slow
def test_real_spam_is_told_from_a_few_hundred_messages(base: at.Base) -> None:
    source = data_folder("ADAPTREE_DATA") / "sms_spam" / "all.jsonl.xz"
    messages = [row for _, row in rows(source)][:400]
    bound = at.train(messages, base=base, epochs=3, metric="f1", baselines=False)
    found = bound.task.record.metrics["validation"]
    assert found["accuracy"] > 0.93
    assert found["f1"] > 0.7


@pytest.mark.slow
def test_a_second_real_base_learns_too(tmp_path: Path) -> None:
    folder = data_folder("ADAPTREE_MODELS") / "e5-small"
    other = at.load_base(folder)
    assert other.hooked.sites.depth == 12
    data = head_of("tickets", 80, tmp_path / "t.csv")
    bound = at.train(data, base=other, epochs=6, method="houlsby(size=32, layers=top:4)", baselines=False)
    losses = [h["train_loss"] for h in bound.task.record.history]
    assert losses[-1] < 0.97 * losses[0]
    assert {name.split(".")[0] for name in bound.task.weights if name[0].isdigit()} == {"8", "9", "10", "11"}


def test_the_demo_s_data_is_whole_and_its_parts_are_apart() -> None:
    for name, labels in (("tickets", 8), ("reviews", 3)):
        training, test = ([row for _, row in rows(path)] for path in adaptree.analysis.demo.data(name))
        assert (len(training), len(test)) == (320, 140)
        assert len({row["label"] for row in training}) == len({row["label"] for row in test}) == labels
        seen = {" ".join(row["text"].casefold().split()) for row in training}
        assert len(seen) == 320
        assert not seen & {" ".join(row["text"].casefold().split()) for row in test}
