"""Which words a prediction rests on: for every kind and method, on a terminal, in a pipe, as JSON, csv and a page."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaptree as at
from adaptree import api
from adaptree.analysis import attribution
from adaptree.analysis.attribution import TOLERANCE, explain_words, split, words_in
from adaptree.cli import main
from adaptree.data.encode import Layout
from adaptree.errors import CompositionError, UsageError
from adaptree.methods import Plan
from adaptree.models.gates import gated
from adaptree.models.hooks import HookedModel
from adaptree.reports import highlight
from adaptree.tasks.task import Task
from tests import browser, tiny
from tests.bases import tiny_base
from tests.compat.forms import OPTIONS, asked, questions, rows

FORMS = ["single", "pair", "windows", "labels", "regress", "numbers", "tag", "spans", "answer", "choose"]
METHODS = ["houlsby:4", "lora:2", "full", "rand_sft:0.05", "bitfit", "head", "pfeiffer(size=4, invertible=true)"]
HOSTILE = "lion \x1b[31mred\x1b[0m \x9b2J \x07 <b>plum</b> a"


class World:
    """A tiny base with a mask, a task of every form of data, and one of every family of methods."""

    def __init__(self, root: Path) -> None:
        self.base = at.load_base(tiny_base(root / "base", mask=True))
        self.store = at.Store(root / "store")
        options: dict[str, Any] = {"base": self.base, "store": self.store, "baselines": False, "lr": 1e-2, "epochs": 1}
        for form in [*FORMS, "mlm"]:
            task = at.train(rows(form, 30), name=form, method="pfeiffer:4", **OPTIONS.get(form, {}), **options).task
            if form in ("tag", "spans"):  # few words are tagged in the data: make it keener to find some
                bias = task.tensors["head.bias"].clone()
                bias[0] -= 1.5  # of O
                self.store.add(Task(replace(task.record, version=0), {**task.tensors, "head.bias": bias}))
        for i, method in enumerate(METHODS):
            at.train(rows("single", 30), name=f"m{i}", method=method, **options)
        at.train(rows("single", 60), name="bag", method="tfidf", **options)
        two = [row | {"label": row["label"] == "beast"} for row in rows("single", 60)]
        at.train(two, name="two", method="tfidf", **options)
        at.train(rows("regress", 60), name="number", method="tfidf", **options)
        at.train(rows("pair", 60), name="bags", method="tfidf", **OPTIONS["pair"], **options)

    def bind(self, name: str) -> Any:
        return self.base.bind(name, tasks=self.store)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("words"))


def check(found: Any) -> None:
    """Words are where they say, in their order, and their scores sum to what the texts add."""
    for each in found:
        assert [each.texts[word.part][word.start : word.end] for word in each.words] == [w.text for w in each.words]
        order = [(word.part, word.start) for word in each.words]
        assert order == sorted(order)
        assert len(each.spans) == len(each.scores) == len(each.words)
        if each.baseline is not None:
            total = sum(word.score or 0 for word in each.words)
            sizes = sum(abs(word.score or 0) for word in each.words)
            assert total - each.error == pytest.approx(each.evidence - each.baseline, abs=1e-5)
            assert abs(each.error) <= TOLERANCE * sizes + 1e-6
            assert each.converged


@pytest.mark.parametrize("by", [None, "leave-one-out"])
@pytest.mark.parametrize("form", FORMS)
def test_every_kind_is_explained(world: World, form: str, by: str | None) -> None:
    bound = world.bind(form)
    inputs = asked(form, questions(form))
    found = explain_words(bound, inputs, by=by)
    check(found)
    assert {each.by for each in found} == {by or "gradients"}
    if form not in ("labels", "numbers", "tag", "spans"):
        assert len(found) == len(inputs)
    assert json.loads(json.dumps([each.to_dict() for each in found], allow_nan=False))


@pytest.mark.parametrize("name", [*(f"m{i}" for i in range(len(METHODS))), "stack(m0)", "average(single, single)"])
def test_every_method_and_composition_is_explained(world: World, name: str) -> None:
    if name.startswith("average"):
        world.store.add(world.store["single"])  # a second version, with the same weights
        name = "average(single@1, single@2)"
    bound = world.bind(name)
    before = bound.logits(["the lion and a plum"])
    found = explain_words(bound, ["the lion and a plum"])
    check(found)
    assert any(abs(word.score) > 1e-3 for word in found[0].words)
    assert torch.equal(bound.logits(["the lion and a plum"]), before), "looking changes nothing"


def test_gradients_are_those_of_the_path_by_hand(world: World) -> None:
    """Against finite differences of the evidence along the path, word by word."""
    bound = world.bind("single")
    (found,) = explain_words(bound, ["the lion and a plum"])
    (row,) = bound.base.encoder.encode(["the lion and a plum"], 64)
    label = list(bound.kind.labels).index(found.target)
    mask = bound.base.encoder.mask_id()

    def odds(gates: torch.Tensor) -> torch.Tensor:
        z = bound.gated([row] * len(gates), gates, mask).double()
        return z[:, label] - torch.cat([z[:, :label], z[:, label + 1 :]], 1).logsumexp(1)

    ends = torch.stack([torch.ones(len(row.ids)), torch.tensor([1.0, 0, 0, 0, 0, 0, 1])])  # [CLS] and [SEP] stay
    along = (torch.arange(100)[:, None] + 0.5) / 100
    path = ends[1] + along * (ends[0] - ends[1])
    with torch.no_grad():
        assert odds(ends).tolist() == pytest.approx([found.evidence, found.baseline], abs=1e-4)
        for i, word in enumerate(found.words):
            step = torch.zeros(len(row.ids))
            step[i + 1] = 1e-2
            slope = (odds(path + step) - odds(path - step)).mean() / 2e-2
            assert word.score == pytest.approx(float(slope), abs=0.02 + 0.02 * abs(float(slope)))


def test_leaving_a_word_out_is_masking_it(world: World) -> None:
    bound = world.bind("regress")
    (found,) = explain_words(bound, ["the lion and a plum"], by="leave-one-out")
    whole, *others = bound.predict(["the lion and a plum", "[MASK] lion and a plum", "the [MASK] and a plum"])
    assert found.evidence == pytest.approx(whole.value)
    assert (found.baseline, found.error, found.measure) == (None, None, "value")
    for word, other in zip(found.words, others, strict=False):
        assert word.score == pytest.approx(whole.value - other.value, abs=1e-5)


def test_windows_of_a_long_text_are_one_explanation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = world.bind("windows")
    text = "the lion and a plum " * 30
    (whole,) = explain_words(bound, [text])
    assert len(bound.read([text])[0]) > 2
    assert len(whole.words) == 150
    check([whole])
    monkeypatch.setattr(attribution, "ROWS", 2)  # as for a text of very many windows: some rows at a time
    (parts,) = explain_words(bound, [text])
    assert parts.scores == pytest.approx(whole.scores, abs=1e-4)


def test_words_behind_the_limit_have_no_score(world: World) -> None:
    bound = world.bind("single")
    text = "lion " * 200
    (found,) = explain_words(bound, [text])
    read = [word.score is not None for word in found.words]
    assert len(read) == 200
    assert sum(read) == bound.task.record.max_length - 2
    assert bound.truncated == 1
    check([found])
    assert "lion" in highlight.plain(found)


@pytest.mark.parametrize("text", ["", " \t\n ", "zebra", "🙂👩‍👩‍👧", "a\0b", "\ud83d x", "e" + "\u0301" * 50])
@pytest.mark.parametrize("name", ["single", "tag", "windows", "bag"])
def test_no_text_however_odd_breaks_it(world: World, name: str, text: str) -> None:
    found = explain_words(world.bind(name), [text])
    check(found)
    for each in found:
        assert highlight.piece(each).encode("utf-8")
        assert json.dumps(each.to_dict(), ensure_ascii=False).encode("utf-8")


def test_a_target_names_what_is_explained(world: World) -> None:
    bound = world.bind("single")
    text = "the lion and a plum"
    labels = {label: explain_words(bound, [text], target=label)[0] for label in ("beast", "fruit", "tool")}
    (usual,) = explain_words(bound, text)
    assert usual == labels[bound.predict([text])[0].label]
    assert sum(each.probability or 0 for each in labels.values()) == pytest.approx(1)
    with pytest.raises(UsageError, match=r"no label 'beats'.*Did you mean 'beast'"):
        explain_words(bound, text, target="beats")
    numbers = explain_words(world.bind("numbers"), [text])
    assert [each.target for each in numbers] == ["joy", "fear"]
    assert explain_words(world.bind("numbers"), [text], target="fear")[0] == numbers[1]
    (fruit,) = explain_words(world.bind("labels"), [text], target="fruit")
    assert fruit.evidence == pytest.approx(np.log(fruit.probability / (1 - fruit.probability)), abs=1e-4)
    choice = {"text": "the old lion", "choices": ["apple", "saw"]}
    for target in ("saw", "1"):
        (found,) = explain_words(world.bind("choose"), [choice], target=target)
        assert (found.target, [word.part for word in found.words]) == ("saw", [0, 0, 0, 1, 2])
    with pytest.raises(UsageError, match="none of the 2 choices"):
        explain_words(world.bind("choose"), [choice], target="plum")
    with pytest.raises(UsageError, match="one number"):
        explain_words(world.bind("regress"), [text], target="x")
    with pytest.raises(UsageError, match="no label to choose"):
        explain_words(world.bind("answer"), [("the old", text)], target="x")
    with pytest.raises(UsageError, match=r"no tag 'BEATS'.*'BEAST'"):
        explain_words(world.bind("tag"), [text], target="BEATS")


def test_a_choice_in_the_place_of_a_gap_is_a_text_of_its_own(world: World) -> None:
    given = {"text": "the old _ and a plum", "choices": ["big lion", "saw"]}
    (found,) = explain_words(world.bind("choose"), [given])
    check([found])
    assert [(word.part, word.text) for word in found.words if word.score is not None] == [
        (0, "the"), (0, "old"), (0, "and"), (0, "a"), (0, "plum"), (1, "big"), (1, "lion"), (2, "saw"),
    ]  # fmt: skip


def test_an_entity_and_an_answer_say_where_they_are(world: World) -> None:
    for name in ("tag", "spans"):
        for each in explain_words(world.bind(name), ["the lion and a wolf today"]):
            assert each.target.endswith(each.texts[0][each.start : each.end])
    (found,) = explain_words(world.bind("answer"), [("the beast", "the lion and a plum")])
    if found.start is not None:
        assert found.texts[1][found.start : found.end] == found.target
    assert {word.part for word in found.words} == {0, 1}


def test_a_language_model_has_nothing_to_explain(world: World) -> None:
    with pytest.raises(UsageError, match="predicts every hidden word"):
        explain_words(world.bind("mlm"), ["the lion"])


def test_plain_tags_need_a_name(world: World) -> None:
    names = {"O": "OTHER", "B-BEAST": "NOUN", "I-BEAST": "NOUN"}
    data = [{"tokens": row["tokens"], "tags": [names[tag] for tag in row["tags"]]} for row in rows("tag", 20)]
    bound = at.train(data, base=world.base, method="pfeiffer:4", epochs=1, baselines=False)
    with pytest.raises(UsageError, match=r"every word has a tag.*--target"):
        explain_words(bound, ["the lion"])
    found = explain_words(bound, ["the lion"], target="NOUN") + explain_words(bound, ["the lion"], target="OTHER")
    assert len(found) == 2


@pytest.mark.parametrize("name", ["two", "number", "bag", "bags"])
def test_a_linear_model_is_explained_by_its_own_weights(world: World, name: str) -> None:
    bound = world.bind(name)
    text: Any = ("The lion and a Lion", "İ a plum saw") if name == "bags" else "The lion, and the Lion saw a plum!"
    (found,) = explain_words(bound, [text])
    check([found])
    assert found.by == "weights"
    assert abs(found.error) < 1e-4, "exact, but for single precision"
    (empty,) = bound.run([("", "") if name == "bags" else ""])[1]
    assert found.baseline == pytest.approx(
        float(bound.kind.evidence(empty[None].double(), [], _key(bound, found))), abs=1e-4
    )
    assert {word.text for word in found.words if word.score} <= {"The", "the", "lion", "and", "Lion", "plum", "saw"}
    (out,) = explain_words(bound, [text], by="leave-one-out")
    assert out.evidence == pytest.approx(found.evidence, abs=1e-5)
    assert out.by == "leave-one-out"


def _key(bound: Any, found: Any) -> int:
    return 0 if found.target == "value" else [str(label) for label in bound.kind.labels].index(found.target)


def test_int8_is_explained_in_full_precision(world: World) -> None:
    quick = world.base.bind(world.store["single@1"], int8=True)
    assert explain_words(quick, ["the lion"]) == explain_words(world.bind("single@1"), ["the lion"])


def test_several_tasks_and_unknown_ways_are_refused(world: World) -> None:
    with pytest.raises(CompositionError, match="Name one of them"):
        explain_words(world.bind("parallel(single, labels)"), ["the lion"])
    with pytest.raises(UsageError, match=r"no way to explain by 'gradient'.*Did you mean 'gradients'"):
        explain_words(world.bind("single"), ["the lion"], by="gradient")
    with pytest.raises(CompositionError, match="does not attend"):
        api.explain(world.bind("single"), ["the lion"], by="attention")


@pytest.mark.parametrize("name", [name for name in tiny.CASES if name not in ("t5", "t5-generator")])
def test_gates_work_on_every_architecture(name: str) -> None:
    """Open gates change nothing, closed ones are the hidden token, and every token's gate has a gradient."""
    hooked = HookedModel(tiny.model(name), tiny.CASES[name].row)
    ids = torch.arange(8, 16)[None]
    mask = torch.ones_like(ids)

    def run(plan: Plan, ids: torch.Tensor = ids) -> Any:
        with hooked.running(plan):
            return hooked.backbone(input_ids=ids, attention_mask=mask).last_hidden_state

    gates = torch.ones(ids.shape, requires_grad=True)
    states = run(gated(hooked, {}, gates, 7))
    with torch.no_grad():
        assert torch.allclose(states, run({}), atol=1e-4)
        hidden = torch.tensor([[1.0, 0, 1, 1, 1, 1, 1, 1]])
        other = ids.clone()
        other[0, 1] = 7
        assert torch.allclose(run(gated(hooked, {}, hidden, 7)), run({}, other), atol=1e-4)
    (slope,) = torch.autograd.grad(states.sum() + (states**2).sum(), gates)
    assert (slope[0] != 0).all()


def test_words_are_those_of_a_reader() -> None:
    text = "Don't pay $3.50, well-known 'A.B.' 漢字!"
    assert [text[start:end] for start, end in split(text)] == [
        "Don't", "pay", "$", "3.50", ",", "well-known", "'", "A", ".", "B", ".", "'", "漢", "字", "!",
    ]  # fmt: skip


def test_words_that_share_a_token_are_one() -> None:
    layout = Layout(["ab cd ef"], [np.array([(-1, 0, 0), (0, 0, 1), (0, 1, 4), (0, 5, 8), (-1, 0, 0)])])
    found = words_in(layout)
    assert found.spans == [(0, 0, 5), (0, 6, 8)]
    assert found.owners[0].tolist() == [-1, 0, 0, 1, -1]
    blank = words_in(Layout([" "], [np.array([(0, 0, 1)])]))
    assert (blank.spans, blank.owners[0].tolist()) == ([], [-1])


# What is shown


def test_the_text_is_shown_in_a_pipe_on_a_terminal_and_in_a_notebook(world: World) -> None:
    found = explain_words(world.bind("single"), ["the lion and a plum"])
    strongest = max(found[0].words, key=lambda word: abs(word.score or 0))
    assert f"[{strongest.score:+.2f} {strongest.text}]" in highlight.plain(found[0])
    coloured = highlight.coloured(found[0])
    assert coloured.plain == "the lion and a plum"
    assert any(" on rgb(" in str(span.style) for span in coloured.spans)
    shown = found._repr_html_()
    assert f'title="{strongest.score:+.4f}"' in shown
    assert shown == found[0]._repr_html_()
    Balanced().feed(shown)


class Balanced(HTMLParser):
    """Raises where a tag is closed that was not opened, or a source is not on the page itself."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "b2", "link", "img")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object, code: int = 0) -> str:
        assert main(["explain", *map(str, words), "--store", str(world.store.path)]) == code
        out, err = capsys.readouterr()
        return str(out if code == 0 else err)

    return run


def test_the_command_shows_words(world: World, run: Any, tmp_path: Path) -> None:
    text = "the lion and a plum"
    (found,) = explain_words(world.bind("single"), [text])
    shown = run("single", text)
    assert highlight.plain(found) in shown
    assert f"{found.target}  probability {found.probability:.4f}  log-odds {found.evidence:.3f} = " in shown
    assert json.loads(run("single", text, "--format", "jsonl")) == json.loads(
        json.dumps({"input": 0, **found.to_dict()})
    )
    table = list(csv.DictReader(io.StringIO(run("single", text, "--format", "csv"))))
    assert [row["text"] for row in table] == text.split()
    assert float(table[1]["score"]) == pytest.approx(found.words[1].score)
    file = tmp_path / "some.csv"
    file.write_text("text\nthe lion\na plum\n")
    assert len(run("single", file, "--by", "leave-one-out", "--format", "jsonl").splitlines()) == 2
    assert [each["input"] for each in json.loads(run("numbers", "--file", file, "--format", "json"))] == [0, 0, 1, 1]
    assert "[" in run("pair", "the lion\ta plum", "--target", "not")


@pytest.mark.parametrize("words", [["single"], ["single", "--format", "json"], ["single", "--format", "csv"], ["bag"]])
def test_no_escape_sequence_reaches_the_terminal(run: Any, words: list[str], tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    shown = run(*words, HOSTILE, "--out", page, "--quiet")
    for text in (shown, page.read_text()):
        assert not {c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
    assert "<b>plum" not in page.read_text()
    Balanced().feed(page.read_text())


def test_a_label_with_an_escape_sequence_is_harmless_too(world: World, run: Any) -> None:
    data = [row | {"label": "\x1b[31m" + row["label"]} for row in rows("single", 30)]
    at.train(data, base=world.base, name="red", method="pfeiffer:4", epochs=1, baselines=False, store=world.store)
    for words in ([], ["--format", "json"], ["--format", "csv"]):
        assert "\x1b" not in run("red", "the lion", *words)


@browser.needed
def test_the_page_opens_without_the_network(run: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("single", "the lion and a plum", "a saw", "--out", page, "--quiet")
    seen = browser.dom(page, tmp_path / "profile")
    assert "What single@" in seen
    assert seen.count("title=") >= 7
    assert "http" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["single", "lion", "--by", "attention"], "does not attend to anything"),
        (["single", "lion", "--by", "magic"], "no way to explain by 'magic'"),
        (["single", "lion", "--target", "zebra"], "no label 'zebra'"),
        (["single", "lion", "--out", "folder"], "--out folder/words.html"),
        (["mlm", "lion"], "predicts every hidden word"),
        (["parallel(single, labels)", "lion"], "Name one of them"),
    ],
)
def test_the_command_refuses_what_it_cannot_explain(run: Any, words: list[str], why: str) -> None:
    assert why in run(*words, code=2)
