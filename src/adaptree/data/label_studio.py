"""Label Studio's exports, JSON and JSON-MIN, as plain rows: choices, ratings, numbers and spans of text.

JSON        {"data": {"text": "…"}, "annotations": [{"result": [{"from_name": "topic", "value": {"choices": ["a"]}}]}]}
JSON-MIN    {"text": "…", "topic": "a", "annotation_id": 1, "lead_time": 2.5, …}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from adaptree.data.files import File
from adaptree.errors import DataError

Row = tuple[int, dict[str, Any]]
ANNOTATIONS = ("annotations", "completions")
"""Where the answers are; Label Studio before 1.0 had the second."""
ADMINISTRATIVE = ("annotator", "annotation_id", "created_at", "updated_at", "lead_time")
"""Columns of JSON-MIN that are about the annotating."""


def is_export(row: Mapping[str, Any], asked: Collection[str]) -> bool:
    """Return whether a row is of Label Studio; not if the user asks for what is inside of it, such as data.text."""
    if any(name.partition(".")[0] in ("data", *ANNOTATIONS) for name in asked):
        return False
    return _is_whole(row) or {"annotation_id", "lead_time"} <= set(row)


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the JSON export, with everything in it."""
    found = next((row[name] for name in ANNOTATIONS if isinstance(row.get(name), list)), None)
    if found is None or not isinstance(row.get("data"), Mapping):
        return False
    return all(isinstance(each, Mapping) and "result" in each for each in found)


def read_export(file: File, read: Callable[[File], Iterator[Row]]) -> Iterator[Row]:
    """Yield the fields and the answers of each item. The file is read twice: any item may have several choices.

    Where there is one question, its column is called 'label', unless the user asks for it by its name.
    """
    questions: set[str] = set()
    several: set[str] = set()
    repeated = 0
    for _, row in read(file):
        file.fetched = 0
        answers, others = _answers(row)
        questions |= set(answers)
        several |= {name for name, value in answers.items() if _choices(value) and len(value) > 1}
        repeated += bool(others)
    if repeated:
        file.note(f"'{file.name}': {repeated:,} items were annotated more than once; the first annotation is read.")
    only = next(iter(questions)) if len(questions) == 1 else None
    rename = only is not None and only not in file.columns
    for number, row in read(file):
        answers, _ = _answers(row)
        fields = dict(row["data"]) if _is_whole(row) else {
            key: value for key, value in row.items() if key not in ADMINISTRATIVE or key in file.columns
        }  # fmt: skip
        for name in questions:
            value: Any = answers[name] if name in answers else fields.get(name)
            fields.pop(name, None)
            if _choices(value):
                value = value if name in several else value[0]
            elif isinstance(value, str) and name in several:
                value = [value]
            elif isinstance(value, list):
                value = [_span(span, fields, number, file.name) for span in value]
            column = "label" if rename and "label" not in fields else name
            fields[column] = value
        yield number, fields


def _choices(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _answers(row: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return an item's answers by question, and whether other annotators answered, too."""
    if not _is_whole(row):
        found = {name: _answer(value) for name, value in row.items() if isinstance(value, Mapping | list)}
        return {name: value for name, value in found.items() if value is not None}, False
    given = [each for name in ANNOTATIONS for each in row.get(name) or () if isinstance(each, Mapping)]
    given = [each for each in given if each.get("result") and not each.get("was_cancelled")]
    given.sort(key=lambda each: not each.get("ground_truth"))  # stable: the first, or the one that counts as right
    answers: dict[str, Any] = {}
    for result in given[0]["result"] if given else ():
        value = _answer(result.get("value")) if isinstance(result, Mapping) else None
        if value is not None:
            name = str(result.get("from_name", "label"))
            answers[name] = [*answers.get(name, ()), *value] if isinstance(value, list) else value
    return answers, len(given) > 1


def _answer(value: Any) -> Any:
    """Return a question's answer: a list of choices, a number, or a list of spans; None for any other."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):  # of JSON-MIN
        parts = [_answer(each) for each in value]
        if all(isinstance(part, list) for part in parts):
            return [each for part in parts for each in part]
        return parts[0] if len(parts) == 1 else None
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("choices"), list):
        return [str(choice) for choice in value["choices"]] or None
    if isinstance(value.get("labels"), list) and {"start", "end"} <= set(value):
        return [value] if value["labels"] else None
    return next((value[name] for name in ("rating", "number") if isinstance(value.get(name), int | float)), None)


def _span(span: Mapping[str, Any], fields: Mapping[str, Any], number: int, name: str) -> dict[str, Any]:
    """Return a span as {start, end, label}, in characters.

    Browsers count a character beyond U+FFFF twice, and old versions name the last character, not the one behind it: the
    span's own text shows which it is.
    """
    label, start, end = str(span["labels"][0]), span["start"], span["end"]
    shown = span.get("text")
    if not isinstance(shown, str):
        return {"start": start, "end": end, "label": label}
    for text in (value for value in fields.values() if isinstance(value, str)):
        for first, last in ((start, end), (start, end + 1), (_characters(text, start), _characters(text, end))):
            if text[first:last] == shown:
                return {"start": first, "end": last, "label": label}
    raise DataError(
        f"row {number} of '{name}': the span '{shown[:60]}' is not at characters {start} to {end} of its text.",
        hint="Export the project again.",
    )


def _characters(text: str, units: int) -> int:
    """Return how many characters the first 16-bit units of a text are."""
    return len(text.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "replace"))
