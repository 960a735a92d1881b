from __future__ import annotations

import base64
import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adaptree as at
from adaptree.reports import card
from adaptree.reports.figures import figures as figures_of
from adaptree.reports.markdown import plain
from adaptree.reports.text import CONTROL
from adaptree.tasks.record import Record
from adaptree.tasks.task import Task
from tests.bases import FILLER, WORDS, tiny_base

pytestmark = pytest.mark.figures


def full(**changes: object) -> Record:
    values: dict[str, object] = {
        "name": "reviews", "version": 3, "kind": "classify", "labels": ["bad", "good"], "method": "houlsby(size=64)",
        "base": {"name": "minilm", "fingerprint": "f00d", "architecture": "bert"}, "pooling": "mean", "max_length": 128,
        "columns": {"text": "text", "pair": None, "label": "label"},
        "data": {"name": "reviews.csv", "digest": "d1e5", "rows": 1500, "train": 1200, "validation": 200, "test": 100,
                 "truncated": 7, "left_out": {"without a text": 2}, "label_counts": {"bad": 700, "good": 800}},
        "metrics": {"validation": {"accuracy": 0.98}, "test": {"accuracy": 0.97, "f1": 0.96}},
        "intervals": {"validation": {"accuracy": [0.96, 0.99]}, "test": {"accuracy": [0.93, 0.99], "f1": [0.9, 0.98]}},
        "baselines": {"majority": {"accuracy": 0.55, "f1": 0.0}, "tfidf": {"accuracy": 0.9, "f1": 0.89}},
        "parameters": {"adapters": 594_048, "norms": 9_984, "head": 770, "trained": 604_802, "base": 22_713_216,
                       "base_without_embeddings": 10_795_776},
        "trained_percent": 2.66, "seconds": 61.23, "seed": 0, "settings": {"epochs": 5, "lr": 0.001, "metric": "f1"},
        "examples": [{"text": "works | well <b>\nnow", "label": "good"}], "file_bytes": 2_424_000,
        "versions": {"adaptree": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    return Record(**{**values, **changes})  # type: ignore[arg-type]


def front(text: str) -> list[str]:
    return text.split("---\n")[1].splitlines()


def test_the_front_matter_is_tagged_with_base_method_and_metrics() -> None:
    lines = front(card.write(full()))
    assert lines[:2] == ["library_name: adaptree", 'base_model: "minilm"']
    assert {'- "adaptree"', '- "minilm"', '- "houlsby"', '- "accuracy"', '- "f1"'} <= set(lines)


def test_scores_stand_with_their_interval_beside_the_baselines() -> None:
    text = card.write(full())
    assert "| metric | this task | 95 % interval | majority class | TF-IDF, linear |" in text
    assert "| accuracy | 0.9700 | 0.9300 to 0.9900 | 0.5500 | 0.9000 |" in text
    assert "On the 100 rows of the test part" in text
    assert "On the validation part: accuracy 0.9800 (0.9600 to 0.9900)." in text
    assert "those of good" in text
    assert "those of good" not in card.write(full(kind="multilabel"))


def test_without_a_test_part_validation_is_shown() -> None:
    text = card.write(full(metrics={"validation": {"pearson": 0.8}}, kind="regress", labels=[]))
    assert "On the 200 rows of the validation part" in text
    assert "| mean |" in text
    assert "## Labels" not in text


def test_the_price_is_whole() -> None:
    text = card.write(full())
    for row in (
        "| trained in adapters | 594,048 |",
        "| trained in norms | 9,984 |",
        "| trained in head | 770 |",
        "| trained in all | 604,802 |",
        "| of the base | 2.66 % |",
        "| of the base without embeddings | 5.60 % |",
        "| bytes on disk | 2,424,000 |",
        "| seconds of training | 61.2 |",
    ):
        assert row in text


def test_labels_data_and_settings_are_there() -> None:
    text = card.write(full())
    for part in ("| bad | 700 |", "| good | 800 |", "`d1e5`", "1,200 train", "epochs: 5", "pooling: mean", "seed: 0",
                 "cut to 128 tokens (`--max-length`): 7 texts", "left out: 2 rows without a text",
                 "torch 2.13.0"):  # fmt: skip
        assert part in text, part


def test_of_many_labels_the_first_are_shown() -> None:
    text = card.write(full(labels=list(range(1000)), data={}))
    assert "48, 49\n\nand 950 more" in text


def test_it_says_how_to_load_it() -> None:
    text = card.write(full())
    assert 'task = at.Store()["reviews@3"]' in text
    assert 'adaptree predict reviews@3 "a text"' in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    compile(code, "card", "exec")
    assert '[("a text", "the text beside it")]' in card.write(full(columns={"text": "a", "pair": "b", "label": "c"}))
    assert 'at.attach(model, ".")' in card.write(full(kind="attached"))


@pytest.mark.parametrize(("method", "also"), [("houlsby(size=64)", False), ("pfeiffer(size=48)", True)])
def test_it_cites_houlsby_and_where_it_is_due_pfeiffer(method: str, also: bool) -> None:
    text = card.write(full(method=method))
    assert "houlsby2019parameter" in text
    assert ("pfeiffer2021adapterfusion" in text) == also


def test_a_bare_record_has_a_card() -> None:
    text = card.write(Record(name="x", kind="attached", method="houlsby(size=8)", base={}))
    assert text.startswith("---\n")
    assert "# x\n" in text


def test_an_example_is_one_row_without_markup() -> None:
    assert r"| works \| well &lt;b&gt; now | good |" in card.write(full())
    pair = card.write(full(examples=[{"text": "one", "pair": "two", "label": 1}]))
    assert "| one · two | 1 |" in pair


@given(st.text())
def test_no_text_breaks_out_of_its_cell(text: str) -> None:
    shown = plain(text)
    assert len(shown.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(\\\\)*[|`\[*]", shown)
    assert "<" not in shown
    shown.encode()


def test_a_long_text_is_cut_before_it_is_escaped() -> None:
    assert plain("word " * 100) == ("word " * 24)[:119].rstrip() + "…"
    assert plain("|" * 500) == r"\|" * 119 + "…"


EVIL = "da`|[x](y)<b>\n```\n# no\x1b[31m\u202e.csv"


def test_a_file_s_name_means_nothing_to_markdown_html_or_a_terminal() -> None:
    record = full(
        name=EVIL, method=f"houlsby({EVIL})", base={"name": EVIL, "fingerprint": EVIL}, kind="classify", pooling=EVIL,
        labels=[EVIL, "x"], data={"name": EVIL, "digest": EVIL, "left_out": {EVIL: 2}, "label_counts": {EVIL: 1}},
        metrics={"validation": {EVIL: 0.5}}, settings={EVIL: EVIL}, versions={EVIL: EVIL}, extra={"on": EVIL},
    )  # fmt: skip
    text = card.write(record)
    assert not CONTROL.search(text.replace("\n", ""))
    below = text.partition("\n---\n")[2]
    assert [line for line in below.splitlines() if line.startswith("# ")] == [
        r"# da\`\|\[x\](y)&lt;b&gt; \`\`\` # no�\[31m�.csv@3"
    ]
    assert "data: da\\`\\|\\[x\\](y)&lt;b&gt;" in below
    outside = re.sub(r"(?m)^```.*?^```$", "", below, flags=re.DOTALL)  # in a block of code nothing has a meaning
    assert "```" not in outside
    outside = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)  # nor in a span of code
    assert not re.search(r"(?<!\\)[\[`<]", outside)
    rows = [line for line in outside.splitlines() if line.startswith("| da")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 6) for row in rows)
    ElementTree.fromstring(Task(record, {"head.bias": torch.zeros(2)})._repr_html_())


@given(st.text(max_size=30))
def test_any_base_name_is_valid_in_the_front_matter(name: str) -> None:
    line = front(card.write(full(base={"name": name})))[1]
    assert json.loads(line.removeprefix("base_model: ")) == name


INSIGHT: dict[str, Any] = {
    "rows": 90, "labels": 2, "wrong": 3,
    "confusion": {"labels": ["bad", "<b>|"], "counts": [[40, 2], [1, 1234]]},
    "by_label": [
        {"label": "<b>|", "precision": 0.5, "recall": 1.0, "f1": 2 / 3, "gold": 1235, "predicted": 1236, "right": 1234}
    ],
    "calibration": {"bins": [{"count": 0, "confidence": None, "accuracy": None}] * 9
                    + [{"count": 90, "confidence": 0.95, "accuracy": 0.9}], "error": 0.05},
    "mistakes": [{"text": "<script>|", "pair": "`x`", "gold": "bad", "predicted": "<b>|", "probability": 0.99}],
    "right": [{"text": "fine", "gold": "bad", "predicted": "bad", "probability": 0.7}],
}  # fmt: skip


def test_what_was_found_has_its_sections() -> None:
    text = card.write(full(extra={"insight": INSIGHT}))
    for part in (
        r"| &lt;b&gt;\| | 0.5000 | 1.0000 | 0.6667 | 1,235 | 1,236 |",
        "![Confusion matrix](confusion.svg)",
        r"| **&lt;b&gt;\|** | 1 | 1,234 |",
        "Expected calibration error: 0.0500",
        "| 0.9 to 1.0 | 90 | 0.9500 | 0.9000 |",
        "3 of the first 90 rows of the test part are wrong. Those that it was surest of:",
        r"| &lt;script&gt;\| · \`x\` | bad | &lt;b&gt;\| | 0.9900 |",
        "## Where it is right\n\n| text | predicted | probability |",
    ):
        assert part in text, part
    assert not re.search(r"<(?!br)", text.partition("## How to cite")[0])


def test_a_record_without_findings_has_none_of_their_sections_and_no_figures() -> None:
    assert "Where it goes wrong" not in card.write(full())
    assert figures_of(full()) == {}
    assert ".svg" not in card.write(full())


def test_figures_are_drawn_from_the_record_alone_and_are_the_same_again() -> None:
    course = [{"epoch": i, "train_loss": 1 / i, "validation_loss": 1.0, "f1": i / 9} for i in range(1, 4)]
    record = full(history=course, extra={"insight": INSIGHT})
    again = Record.from_json(json.loads(json.dumps(record.to_json())))
    assert set(figures_of(record)) == {"course.svg", "confusion.svg", "calibration.svg"}
    assert figures_of(again) == figures_of(record)
    for name in figures_of(record):
        assert f"]({name})" in card.write(record)


def test_a_notebook_shows_scores_with_intervals_and_the_course() -> None:
    course = [{"epoch": i, "train_loss": 1 / i, "validation_loss": 1.0, "f1": i / 9} for i in range(1, 4)]
    task = Task(full(history=course, base={"name": "<script>"}), {"head.bias": torch.zeros(2)})
    page = ElementTree.fromstring(task._repr_html_())
    (image,) = page.iter("img")
    assert (
        base64.b64decode(image.attrib["src"].partition("base64,")[2]).decode() == figures_of(task.record)["course.svg"]
    )
    rows = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
    assert ["f1, test", "0.9600 (0.9000 to 0.9800, 95 %)"] in rows
    assert ["base", "<script>"] in rows
    assert rows[4][0] == "f1, test"  # what it was trained by comes first
    assert repr(task).startswith("Task(reviews@3: classify into 2 labels")


NASTY = "<script>|"


def _texts(rng: random.Random, word: str) -> str:
    return " ".join([NASTY, word, *rng.choices(FILLER, k=rng.randint(2, 6))])


def rows_of(kind: str, count: int = 40) -> list[dict[str, Any]]:
    """Small data of a kind, with a text in it that means something to Markdown and HTML."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        names = rng.sample(sorted(WORDS), 2)
        word = WORDS[names[0]].split()[i % 3]
        text = _texts(rng, word)
        rows.append({
            "classify": {"text": text, "label": f"<b>{names[0]}"},
            "labels": {"text": text, "labels": [f"<b>{name}" for name in names[: i % 3]]},
            "regress": {"text": text, "label": i / 7},
            "numbers": {"text": text, "<b>a": i / 7, "b": i % 5 + 0.5},
            "tag": {"tokens": text.split(), "tags": ["O", f"B-<b>{names[0]}", *["O"] * (len(text.split()) - 2)]},
            "answer": {"question": f"which {names[0]} {NASTY}", "context": text,
                       "answers": {"text": [word], "answer_start": [text.index(word)]}},
            "choose": {"question": text, "choices": [NASTY, word], "label": 1},
            "mlm": {"text": text},
        }[kind])  # fmt: skip
    return rows


SECTIONS = {
    "classify": ("Label by label", "How sure it is", "Where it is right", "one of 3 labels"),
    "labels": ("Label by label", "any number of 3 labels"),
    "regress": ("How far off it is", "Where it goes wrong", "Gives a text a number"),
    "numbers": ("How far off it is", "Where it goes wrong", "2 numbers"),
    "tag": ("Label by label", "every word"),
    "answer": ("By question", "answers a question", '("a question?", "the text with the answer")'),
    "choose": ("By number of choices", '("a text", ["a choice", "another"])'),
    "mlm": ("By length", "Hardest words", "hidden in a text"),
}
ASKED: dict[str, dict[str, Any]] = {"numbers": {"label": "<b>a,b"}, "mlm": {"kind": "mlm"}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("card") / "base", mask=True))


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_trained_task_of_each_kind_has_its_card_and_figures(kind: str, base: Any, tmp_path: Path) -> None:
    store = at.Store(tmp_path)
    bound = at.train(rows_of(kind), base=base, method="houlsby:4", epochs=2, name=kind, store=store,
                     **ASKED.get(kind, {}))  # fmt: skip
    folder = store.path_of(kind)
    text = (folder / "README.md").read_text().split("\n---\n")[1]
    for said in SECTIONS[kind]:
        assert said in text, said
    assert NASTY not in text
    assert "<b>" not in text
    figures = {path.name: path.read_text() for path in folder.glob("*.svg")}
    assert figures == figures_of(bound.task.record)
    assert "course.svg" in figures
    for name, figure in figures.items():
        assert f"]({name})" in text
        assert "<b>" not in figure
        ElementTree.fromstring(figure)
    assert len(json.dumps(bound.task.record.extra["insight"], indent=1)) < 60_000
    ElementTree.fromstring(bound._repr_html_())
    task = store[kind]  # its files are verified
    again = base.bind(task).logits(task.record.probe["inputs"])
    assert torch.equal(again, task.tensors["probe.logits"])
    assert [summary.problem for summary in store.list()] == [""]
    task.save(tmp_path / "copy")
    assert Task.load(tmp_path / "copy").record == task.record
    (folder / "course.svg").unlink()  # a figure can be lost
    assert store[kind].record == task.record
    assert store.remove(kind) == 1
    assert not folder.exists()
