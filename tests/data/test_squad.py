"""Questions with answers in a context, from SQuAD's JSON and from columns."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptree.data.squad import read_squad
from adaptree.errors import DataError
from adaptree.kinds.answer import AnswerForm

CONTEXT = "The Denver Broncos won. The game was played in Santa Clara, near San José, in 2016."
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Super Bowl",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {"id": "a", "question": "Who won?", "answers": [{"text": "Denver Broncos", "answer_start": 4}]},
                        {"id": "b", "question": "Who lost?", "answers": [], "is_impossible": True},
                    ],
                },
                {"context": "Nothing.", "qas": []},
            ],
        },
        {"title": "Bread", "paragraphs": [{"context": "Rye.", "qas": [{"id": "c", "question": "What?"}]}]},
    ],
}


def form_of(rows: list[dict[str, Any]], said: Mapping[str, str | None] | None = None) -> AnswerForm | None:
    return AnswerForm.guess(list(dict.fromkeys(name for row in rows for name in row)), rows, said or {})


def gold_of(row: dict[str, Any]) -> Any:
    columns = {name: name for name in ("question", "context", "answers", "start", "is_impossible", "id") if name in row}
    form = AnswerForm({**columns, "answers": "answers", "impossible": "is_impossible"}, "said")
    return form.target(row, form.input(row, 3, "a.csv"), 3, "a.csv")


def test_squad_json_becomes_flat_rows() -> None:
    rows = list(read_squad(SQUAD))
    assert [number for number, _ in rows] == [1, 2, 3]
    assert [row["id"] for _, row in rows] == ["a", "b", "c"]
    assert rows[0][1] == {
        "title": "Super Bowl", "id": "a", "question": "Who won?", "context": CONTEXT,
        "answers": [{"text": "Denver Broncos", "answer_start": 4}],
    }  # fmt: skip
    assert "answers" not in rows[2][1]
    flat = {"question": "Who?", "context": "Me.", "answers": {"text": ["Me"], "answer_start": [0]}}
    assert list(read_squad({"data": [flat]})) == [(1, flat)]


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["data"], 3, "data is not a list"),
        (["data", 1], "x", r"data\[1\] is not an object"),
        (["data", 1, "paragraphs"], None, r"data\[1\].paragraphs is not a list"),
        (["data", 0, "paragraphs", 0, "context"], 5, r"data\[0\].paragraphs\[0\].context is not a text"),
        (["data", 0, "paragraphs", 0, "qas", 1], [], r"data\[0\].paragraphs\[0\].qas\[1\] is not an object"),
        (["data", 0, "paragraphs", 0, "qas", 1], {"id": 1}, r"paragraphs\[0\].qas\[1\] has no 'question'"),
        (["data", 0, "paragraphs", 0, "qas", 0, "answers"], "x", r"qas\[0\].answers is not a list"),
        (["data", 0], {"title": "x"}, r"data\[0\] has no 'paragraphs'"),
    ],
)
def test_broken_nesting_is_named(path: list[Any], value: Any, where: str) -> None:
    broken = json.loads(json.dumps(SQUAD))
    holder = broken
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with pytest.raises(DataError, match=where) as caught:
        list(read_squad(broken))
    assert caught.value.hint
    with pytest.raises(DataError, match="the top has no 'data'"):
        list(read_squad({"version": "1.1"}))


def test_squad_rows_become_inputs_and_golds() -> None:
    rows = [row for _, row in read_squad(SQUAD)]
    form = form_of(rows)
    assert form is not None
    assert form.columns == {
        "question": "question", "context": "context", "answers": "answers", "start": None,
        "impossible": "is_impossible", "id": "id",
    }  # fmt: skip
    assert "'answers'" in form.why
    inputs = [form.input(row, 1, "x") for row in rows]
    assert inputs[0] == {"question": "Who won?", "context": CONTEXT}
    targets = [form.target(row, given, 1, "x") for row, given in zip(rows, inputs, strict=True)]
    assert targets == [
        {"answers": [{"text": "Denver Broncos", "start": 4}], "id": "a"}, {"answers": [], "id": "b"}, None
    ]  # fmt: skip
    assert json.loads(json.dumps(targets)) == targets
    assert form.key({"question": "Who  won?", "context": "a\nb"}) == form.key(
        {"question": "Who won?", "context": "a b"}
    )
    assert form.key({"question": "Who?", "context": "a"}) != form.key({"question": "What?", "context": "a"})


@pytest.mark.parametrize(
    ("answers", "start", "expected"),
    [
        ({"text": ["Broncos", "Santa Clara"], "answer_start": [11, 47]}, None, [("Broncos", 11), ("Santa Clara", 47)]),
        ({"text": np.array(["Broncos"]), "answer_start": np.array([11])}, None, [("Broncos", 11)]),
        ({"text": "Broncos", "answer_start": 11}, None, [("Broncos", 11)]),
        ({"text": ["Broncos"]}, None, [("Broncos", 11)]),
        ([{"text": "Broncos", "start": 11}, {"text": "2016"}], None, [("Broncos", 11), ("2016", 78)]),
        (["Broncos", "San José"], None, [("Broncos", 11), ("San José", 65)]),
        ("Broncos", None, [("Broncos", 11)]),
        ("Broncos", "11", [("Broncos", 11)]),
        ("Broncos", 11.0, [("Broncos", 11)]),
        ("Broncos", float("nan"), [("Broncos", 11)]),
        ("Broncos", -1, [("Broncos", 11)]),
        ("Broncos", 12, [("Broncos", 11)]),
        ("Broncos", 10, [("Broncos", 11)]),
        (" Broncos ", 10, [("Broncos", 11)]),
        (2016, None, [("2016", 78)]),
        ("in", 74, [("in", 75)]),
        ("in", 45, [("in", 44)]),
        ('{"text": ["Broncos"], "answer_start": [11]}', None, [("Broncos", 11)]),
        ("[{'text': 'Broncos', 'answer_start': 11}]", None, [("Broncos", 11)]),
        ({"text": [], "answer_start": []}, None, []),
        ([], None, []),
        ("", None, []),
        ("  ", 5, []),
        (None, None, []),
        (float("nan"), None, []),
        ([{"text": "", "answer_start": 0}], None, []),
    ],
)
def test_answers_are_read_in_every_shape(answers: Any, start: Any, expected: list[tuple[str, int]]) -> None:
    row = {"question": "?", "context": CONTEXT, "answers": answers, "start": start}
    gold = gold_of(row)
    assert [(each["text"], each["start"]) for each in gold["answers"]] == expected
    assert gold["id"] is None
    for each in gold["answers"]:
        assert CONTEXT.startswith(each["text"], each["start"])


@pytest.mark.parametrize(
    ("answers", "start", "what"),
    [
        ("Panthers", None, "the answer 'Panthers' is not in the context"),
        ("Broncos", 70, "the answer 'Broncos' is not in the context at or near character 70"),
        ("x" * 99, 3, "x…' is not in the context"),
        ("Broncos", "early", "an answer's start is 'early', not a whole number"),
        ("Broncos", 1.5, "not a whole number"),
        (True, None, "column 'answers' holds no answers: True"),
        ({"text": ["a", "b"], "answer_start": [1]}, None, "holds no answers"),
        ({"answer": "x"}, None, "holds no answers"),
        ([3], None, "holds no answers"),
    ],
)
def test_what_is_no_answer_is_named_with_row_and_file(answers: Any, start: Any, what: str) -> None:
    with pytest.raises(DataError, match=r"row 3 of 'a\.csv': ") as caught:
        gold_of({"question": "?", "context": CONTEXT, "answers": answers, "start": start})
    assert what in caught.value.what
    assert caught.value.hint


def test_white_space_before_an_answer_counts_to_its_start() -> None:
    row = {"question": "?", "context": "a  a b", "answers": {"text": ["  a"], "answer_start": [1]}}
    assert gold_of(row)["answers"] == [{"text": "a", "start": 3}]


def test_impossible_questions_have_no_answer_whatever_is_said_besides() -> None:
    for said in (True, "True", "true", 1, 1.0, np.True_):
        row = {"question": "?", "context": CONTEXT, "answers": ["Denver"], "is_impossible": said}
        assert gold_of(row) == {"answers": [], "id": None}
    for said in (False, "False", 0, None, ""):
        row = {"question": "?", "context": CONTEXT, "answers": ["Denver"], "is_impossible": said}
        assert gold_of(row)["answers"] == [{"text": "Denver", "start": 4}]


def test_a_row_without_texts_has_no_input() -> None:
    form = AnswerForm({"question": "question", "context": "passage"}, "")
    assert form.input({"question": " ", "passage": None}, 1, "x") is None
    assert form.input({"question": "Who?", "passage": None}, 1, "x") == {"question": "Who?", "context": ""}
    assert form.input({"question": 5, "passage": "a"}, 1, "x") == {"question": "5", "context": "a"}
    with pytest.raises(DataError, match="row 4 of 'x': column 'passage' holds a list"):
        form.input({"question": "Who?", "passage": ["a"]}, 4, "x")


@pytest.mark.parametrize("context", ["context", "Passage", "paragraph", "document"])
@pytest.mark.parametrize("answer", ["answers", "answer", "answer_text", "Answer Text"])
def test_columns_are_known_by_their_names(context: str, answer: str) -> None:
    form = form_of([{"question": "Who won?", context: CONTEXT, answer: "Denver Broncos", "row": 1}])
    assert form is not None
    assert (form.columns["context"], form.columns["answers"]) == (context, answer)


def test_columns_can_be_said() -> None:
    rows = [{"asked": "Who won?", "read": CONTEXT, "told": "Broncos"}]
    assert form_of(rows) is None
    form = form_of(rows, {"text": "asked", "pair": "read", "label": "told"})
    assert form is not None
    assert form.input(rows[0], 1, "x") == {"question": "Who won?", "context": CONTEXT}
    with pytest.raises(DataError, match="no column 'tolt'") as caught:
        form_of(rows, {"text": "asked", "pair": "read", "label": "tolt"})
    assert caught.value.hint == "Did you mean 'told'?"


@pytest.mark.parametrize(
    "verdicts",
    [[True, False], ["yes", "no"], ["no", "no"], ["No", "Yes"], [0, 1], ["entailment", "neutral"], ["false", "true"]],
)
def test_yes_and_no_about_a_passage_are_not_answers_in_it(verdicts: list[Any]) -> None:
    passage = "There is no reason to say yes; it is true that 1 of 0 is false. No. Yes."
    rows = [{"question": "Is it?", "passage": passage, "answer": verdicts[i % 2]} for i in range(20)]
    assert form_of(rows) is None


def test_a_file_is_of_this_kind_only_when_most_answers_are_in_their_contexts() -> None:
    right, wrong = ({"question": "?", "context": CONTEXT, "answer": text} for text in ("Santa Clara", "a place"))
    assert form_of([right] * 9 + [wrong]) is not None
    assert form_of([right] * 5 + [wrong] * 5) is None
    assert form_of([{**right, "answer": "on"}]) is None  # only inside of other words
    assert form_of([{**right, "answer": ""}]) is None
    assert form_of([{**right, "answer": "", "is_impossible": True}]) is not None
    assert form_of([{"question": "?", "context": CONTEXT}]) is None
    assert form_of([]) is None


def test_the_real_files_are_read_whole() -> None:
    folder = os.environ.get("ADAPTREE_DATA")
    if not folder or not (Path(folder) / "squad").is_dir():
        pytest.skip("ADAPTREE_DATA does not name a folder with squad/")
    for name, questions, answers in (("train_subset", 4330, 4330), ("validation", 10_570, 34_726)):
        with lzma.open(Path(folder) / "squad" / f"{name}.json.xz", "rt", encoding="utf-8") as file:
            rows = [row for _, row in read_squad(json.load(file))]
        form = form_of(rows[:500])
        assert form is not None
        targets = [form.target(row, form.input(row, i, name), i, name) for i, row in enumerate(rows)]
        assert len(targets) == questions
        assert sum(len(gold["answers"]) for gold in targets if gold) == answers
