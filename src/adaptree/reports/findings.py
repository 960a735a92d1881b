"""What was found in a task's answers, as sections of its card: where it goes wrong, label by label, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptree.reports.markdown import number, plain, score, section, table, value

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

CUT = 200
IN_FULL = 10
"""Labels up to which a confusion matrix is a table too."""

Found = Mapping[str, Any]


def sections(record: Record, drawn: Mapping[str, str]) -> list[str]:
    """Those that the record has something for; `drawn` are its figures as the card shows them."""
    found: Found = record.extra.get("insight") or {}
    return [
        section("Label by label", _labels(found), drawn.get("confusion.svg", ""), _confusion(found)),
        section("How sure it is", drawn.get("calibration.svg", ""), _calibration(found)),
        section("How far off it is", _targets(found), drawn.get("scatter.svg", "")),
        section("By question", _by_word(found)),
        section("By number of choices", _by_choices(found)),
        section("By length", _by_length(found)),
        section("Hardest words", _words(found)),
        section("Where it goes wrong", _mistakes(found, record)),
        section("Where it is right", _right(found)),
    ]


def _labels(found: Found) -> str:
    rows = found.get("by_label") or []
    if not rows:
        return ""
    names = ("precision", "recall", "f1")
    lines = [
        (plain(row["label"]), *(score(row[name]) for name in names), number(row["gold"]), number(row["predicted"]))
        for row in rows
    ]
    shown = table(("label", *names, "gold", "predicted"), lines)
    more = found.get("labels", 0) - len(rows)
    return shown + (
        f"\n\nThe {len(rows)} labels with the most rows; there are {number(more)} more." if more > 0 else ""
    )


def _confusion(found: Found) -> str:
    matrix = found.get("confusion")
    if not matrix or len(matrix["labels"]) > IN_FULL:
        return ""
    labels = [plain(label, 40) for label in matrix["labels"]]
    lines = [(f"**{label}**", *map(number, row)) for label, row in zip(labels, matrix["counts"], strict=True)]
    return table(("gold ↓ predicted →", *labels), lines)


def _calibration(found: Found) -> str:
    bins = (found.get("calibration") or {}).get("bins") or []
    if not bins:
        return ""
    error = found["calibration"]["error"]
    lines = [
        (
            f"{i / len(bins):.1f} to {(i + 1) / len(bins):.1f}",
            number(each["count"]),
            score(each["confidence"]),
            score(each["accuracy"]),
        )
        for i, each in enumerate(bins)
        if each["count"]
    ]
    said = f"Expected calibration error: {score(error)} (0 where it is right as often as it is sure)."
    return said + "\n\n" + table(("probability", "rows", "mean probability", "share that is right"), lines)


def _targets(found: Found) -> str:
    rows = found.get("targets") or []
    head = ("number", "mean of predicted - gold", "spread of it")
    lines = [(plain(row["name"]), value(row["mean"]), value(row["spread"])) for row in rows]
    if not any(row["name"] for row in rows):
        head, lines = head[1:], [line[1:] for line in lines]  # type: ignore[assignment, misc]
    return table(head, lines) if lines else ""


def _by_word(found: Found) -> str:
    lines = [
        (plain(row["word"]) or "others", number(row["rows"]), score(row["exact_match"]), score(row["f1"]))
        for row in found.get("by_word") or []
    ]
    return table(("first word", "questions", "exact match", "f1"), lines) if lines else ""


def _by_choices(found: Found) -> str:
    lines = [
        (number(row["choices"]), number(row["rows"]), score(row["accuracy"]), score(1 / row["choices"]))
        for row in found.get("by_choices") or []
    ]
    return table(("choices", "rows", "accuracy", "chance"), lines) if lines else ""


def _by_length(found: Found) -> str:
    lines = [
        (f"{number(row['from'])} to {number(row['to'])}", number(row["rows"]), value(row["perplexity"]))
        for row in found.get("by_length") or []
    ]
    return table(("tokens", "texts", "perplexity"), lines) if lines else ""


def _words(found: Found) -> str:
    lines = [
        (plain(row["word"]), number(row["rows"]), value(row["loss"]), plain(row["said"]))
        for row in found.get("words") or []
    ]
    return table(("word", "times hidden", "mean loss", "mostly said"), lines) if lines else ""


COLUMNS = {
    "gold": "gold",
    "predicted": "predicted",
    "missed": "not found",
    "wrong": "found, but wrong",
    "f1": "f1",
    "loss": "loss",
    "probability": "probability",
}
"""Of a mistake, beside its text."""


def _mistakes(found: Found, record: Record) -> str:
    rows = found.get("mistakes") or []
    if not rows:
        return ""
    part = "test" if record.metrics.get("test") else "validation"
    first = "first " if found["rows"] < int(record.data.get(part) or 0) else ""
    seen = f"the {first}{number(found['rows'])} rows of the {part} part"
    which = next((said for name, said in WORST.items() if name in rows[0]), "")
    said = f"{number(found['wrong'])} of {seen} are wrong. {which}" if which else f"The largest misses in {seen}"
    return f"{said}:\n\n{_told(rows)}"


WORST = {
    "missed": "Those with the most wrong entities",
    "loss": "Those with the highest loss",
    "f1": "Those that are farthest off, the surest first",
    "probability": "Those that it was surest of",
}
"""Which mistakes are shown, by a column that they have."""


def _right(found: Found) -> str:
    rows = found.get("right") or []
    return _told([{key: held for key, held in row.items() if key != "gold"} for row in rows]) if rows else ""


def _told(rows: Sequence[Found]) -> str:
    names = [name for name in COLUMNS if name in rows[0]]
    lines = []
    for row in rows:
        text = " · ".join(plain(row[key], CUT) for key in ("text", "pair") if key in row)
        lines.append((text, *(_cell(name, row.get(name)) for name in names)))
    return table(("text", *(COLUMNS[name] for name in names)), lines)


def _cell(name: str, held: Any) -> str:
    if name in ("f1", "loss", "probability"):
        return score(held)
    return plain(held, CUT) or "none" if isinstance(held, str) else value(held)
