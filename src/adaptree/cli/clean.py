"""adaptree clean"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, counted, emit, emit_one, out, say

if TYPE_CHECKING:
    from adaptree.analysis.clean import Cleaning

KIND = "classify or multilabel. Default: guessed from the file."
LONGEST = 70
"""Characters of a text that the table shows."""


@app.command()
@options.takes(
    "base", *options.COLUMNS, *options.COMPUTING, "max_length", kind=KIND, seed="Seed of the folds. [default: 0]"
)
def clean(
    data: Annotated[str, typer.Argument(help="A labelled file.")],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="Also write a csv of all rows with what was found, to edit and train on."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows to show; --out and --format json have all.")] = 20,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    store: shared.NoStore = None,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Find labels that are probably wrong, repeated texts, and texts with conflicting labels."""
    from adaptree import api

    found = api.clean(data, out=to, on_event=Progress(quiet), **options.given(values))
    if form in (Format.json, Format.jsonl):
        emit_one(found.to_dict(), form)
    elif form is Format.csv:
        emit(found.to_dict()["findings"], form)
    else:
        _print(found, top)
    if to is not None:
        say(f"{to}: all rows with what was found; train without the doubtful ones: --weight clean_weight", quiet)


def _print(found: Cleaning, top: int) -> None:
    console = out()
    console.print(
        f"{_line(found.data)}: {found.rows:,} rows; probably another label: {found.count('label'):,}, "
        f"conflicting labels: {found.count('conflict'):,}, duplicates: {found.count('duplicate'):,}"
    )
    shown = [
        {
            "row": each.row,
            "issue": ", ".join(each.issue),
            "label": _line(each.label),
            "suggested": None if each.suggested is None else _line(each.suggested),
            "probability": each.probability,
            "of": each.duplicate_of,
            "text": _line(each.text),
        }
        for each in found.findings[:top]
    ]
    emit(shown, Format.table, {key: key for key in shown[0]} | {"of": "duplicate of"}) if shown else None
    if len(found.findings) > top:
        console.print(f"… and {counted(len(found.findings) - top, 'row')} more (--top, --out FILE)")
    for label, rows in found.not_judged.items():
        console.print(f"'{_line(label)}' has too few texts to judge: {counted(rows, 'row')}")
    if not found.doubted:
        console.print("no label is in doubt.")
        return
    scores = [
        {"metric": key, "all": value, "without": found.without[key], "gain": f"{found.without[key] - value:+.4f}"}
        for key, value in found.scores.items()
    ]
    titles = {"metric": "", "all": "trained on all rows", "without": "without doubtful rows", "gain": "difference"}
    emit(scores, Format.table, titles)
    low, high = found.gain
    console.print(
        f"Cross-validated on all rows, the {found.doubted:,} doubtful ones included, by logistic regression on vectors "
        f"of {found.base}. 95 % of the difference in accuracy: {low:+.4f} to {high:+.4f}.",
        soft_wrap=True,
    )


def _line(value: Any) -> str:
    """Return a text, a pair or labels on one line, cut."""
    from adaptree.kinds.findings import cut
    from adaptree.reports.text import printable

    parts = value if isinstance(value, list | tuple) else [value]
    return cut(" | ".join(printable(str(part)[:1000]) for part in parts) or "none", LONGEST)
