"""One base and one store serve a task of every kind at once; and no text, however odd, breaks one."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import FILLER, WORDS, tiny_base

import adaptree as at
from adaptree.cli import main

BEASTS = WORDS["beast"].split()


def texts(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices([*FILLER, *BEASTS], k=rng.randint(3, 14)) for _ in range(count)]


def rows(kind: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Data of a kind, as a file would hold it."""
    rng = random.Random(seed)
    made = []
    for i, words in enumerate(texts(count, seed)):
        text = " ".join(words)
        made.append({
            "classify": {"text": text, "label": "ab"[i % 2]},
            "pair": {"text_a": text, "text_b": text[::-1], "label": "ab"[i % 2]},
            "labels": {"text": text, "labels": rng.sample("abc", i % 3)},
            "regress": {"text": text, "label": i / 3},
            "numbers": {"text": text, "joy": i / 3, "fear": -i / 7},
            "tag": {"tokens": words, "tags": ["B-X" if word in BEASTS else "O" for word in words]},
            "answer": {"question": "the old", "context": text, "answer": words[1], "start": len(words[0]) + 1},
            "choose": {"question": text, "choices": rng.sample(FILLER, 3), "label": i % 3},
            "mlm": {"text": text},
        }[kind])  # fmt: skip
    return made


def asked(kind: str, text: str) -> Any:
    """What is asked of a task about a text."""
    return {
        "pair": (text, text),
        "answer": (text[:50], text),
        "choose": {"text": text, "choices": ["old", text[:50]]},
    }.get(kind, text)


OPTIONS: dict[str, dict[str, Any]] = {
    "classify": {}, "pair": {}, "labels": {}, "regress": {}, "numbers": {"label": "joy,fear"}, "tag": {}, "answer": {},
    "choose": {}, "mlm": {"kind": "mlm"},
}  # fmt: skip
HARD: dict[str, Callable[[], str]] = {
    "empty": lambda: "",
    "white space": lambda: " \t\n\r\u00a0\u2003 ",
    "emoji": lambda: "🙂🙃👩‍👩‍👧‍👦🏳️‍🌈",
    "right to left": lambda: "שלום עולם مرحبا بالعالم",
    "null bytes": lambda: "a\0b\0\0c",
    "controls": lambda: "\x01\x1b[31m\u202e\ufeff\ud83d",
    "marks": lambda: "e" + "\u0301" * 2000,
    "long": lambda: "the old lion near " * 25_000,
    "one line of 10 MB": lambda: "lion" * 2_500_000,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("every") / "base", mask=True))


@pytest.fixture(scope="module")
def store(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kept = at.Store(tmp_path_factory.mktemp("every") / "store")
    for kind, options in OPTIONS.items():
        at.train(rows(kind, 60), base=base, name=kind, method="houlsby:4", epochs=1, store=kept, **options)
    return kept


def test_each_kind_is_guessed_and_kept(store: Any) -> None:
    found = {name: store[name].record.kind for name in OPTIONS}
    assert found == {
        "classify": "classify", "pair": "classify", "labels": "multilabel", "regress": "regress",
        "numbers": "multioutput",
        "tag": "tag", "answer": "answer", "choose": "choose", "mlm": "mlm",
    }  # fmt: skip


def test_all_of_them_at_once_answer_with_the_bits_of_each_alone(base: Any, store: Any) -> None:
    some = [" ".join(words) for words in texts(20, seed=9)]
    alone = {}
    for name in OPTIONS:
        fresh = at.load_base(base.location)
        alone[name] = fresh.bind(store[name]).logits([asked(name, text) for text in some])
    bound = {name: base.bind(store[name]) for name in OPTIONS}
    for name in [*OPTIONS, *reversed(OPTIONS)]:
        assert torch.equal(bound[name].logits([asked(name, text) for text in some]), alone[name]), name
    wrong: list[str] = []

    def run(name: str) -> None:
        for _ in range(3):
            if not torch.equal(bound[name].logits([asked(name, text) for text in some]), alone[name]):
                wrong.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in OPTIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("kind", OPTIONS)
def test_no_text_breaks_a_task(kind: str, hard: str, base: Any, store: Any) -> None:
    text = HARD[hard]()
    bound = base.bind(store[kind])
    (answer,) = bound.predict([asked(kind, text)])
    told = json.dumps(answer.to_dict())
    assert told
    assert answer.columns()
    (again, beside) = bound.predict([asked(kind, text), asked(kind, "the old lion")])
    assert json.dumps(again.to_dict()) == told
    assert beside.to_dict() == bound.predict([asked(kind, "the old lion")])[0].to_dict()


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_kind_goes_through_the_commands(
    kind: str, base: Any, store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(kind, 30, seed=2)))
    options = [word for key, value in OPTIONS[kind].items() for word in (f"--{key}", value)]
    assert main(["check", str(path), "--base", base.location, *options]) == 0
    shown = capsys.readouterr().out
    assert f"kind: {store[kind].record.kind}, because " in shown
    common = ["--store", str(store.path), "--base", base.location]
    assert main(["evaluate", kind, str(path), "--format", "json", *common]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["metrics"]["test"]) == set(store[kind].record.metrics["validation"])
    assert main(["predict", kind, "--file", str(path), "--format", "jsonl", *common]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 30
    assert main(["predict", kind, "--file", str(path), *common]) == 0
    assert "prediction" in capsys.readouterr().out.splitlines()[0]
    assert main(["show", kind, "--store", str(store.path)]) == 0


def test_unknown_labels_at_evaluation_are_counted_and_named(base: Any, store: Any) -> None:
    some = [*rows("tag", 20, seed=4), {"tokens": ["the", "lion"], "tags": ["B-NEW", "O"]}]
    scores = at.evaluate(base.bind(store["tag"]), some)
    assert scores["rows"] == 21
    assert scores["unknown_labels"] == {"B-NEW": 1}
    several = [*rows("labels", 20, seed=4), {"text": "the", "labels": ["a", "zebra"]}]
    assert at.evaluate(base.bind(store["labels"]), several)["unknown_labels"] == {"zebra": 1}
    single = [*rows("classify", 20, seed=4), {"text": "the", "label": "zebra"}, {"text": "a", "label": "zebra"}]
    scores = at.evaluate(base.bind(store["classify"]), single)
    assert scores["unknown_labels"] == {"zebra": 2}
    assert scores["rows"] == 22


@pytest.mark.parametrize("kind", ["labels", "tag", "choose", "mlm"])
def test_a_bag_of_words_is_refused_for_other_kinds(kind: str, base: Any) -> None:
    with pytest.raises(at.AdaptreeError, match="tfidf is for one label or one number"):
        at.train(rows(kind, 30), base=base, method="tfidf", **OPTIONS[kind])
    with pytest.raises(at.AdaptreeError, match="tfidf is for one label or one number"):
        at.train(rows("classify", 30), base=base, method="tfidf", windows=True)
