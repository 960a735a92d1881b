"""adaptree improve"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import note_truncated, split_options
from adaptree.cli.show import Format, Progress, emit, emit_one, out, say

if TYPE_CHECKING:
    from adaptree.analysis.improve import Improvement

LONGEST = 80
"""Characters of a text that the table shows."""


@app.command()
@options.takes(
    "text", "text_pair", "encoding", "no_header", *options.COMPUTING, base=options.OF_TASK,
    seed="Seed of what is left to chance. [default: 0]",
)  # fmt: skip
def improve(
    task: Annotated[str, shared.task_argument("The task: its name, or name@version.")],
    data: Annotated[str, typer.Argument(help="A file of texts without labels; rows that have one are not offered.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows to choose.")] = 20,
    labelled: Annotated[
        str | None, typer.Option(help="The file that the task learned from: rows with its texts are not offered.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="Also write the rows as csv, with an empty column to put labels in.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="diverse, uncertain, spread or random. [default: diverse; spread for numbers]"),
    ] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Choose the rows of an unlabelled file that are most worth labelling next, to make a task better.

    They are rows that the task is unsure of, and that differ from each other. Label them, add them to the training file
    and train again under the same name.
    """
    from adaptree import api
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    reading, opening = split_options(values)
    if (seed := opening.pop("seed", None)) is not None:
        reading["seed"] = seed
    bound = open_task(Store(store), task, **opening)
    more: dict[str, Any] = {"labelled": labelled, "out": to, "strategy": strategy, **reading}
    found = api.improve(bound, data, rows=rows, on_event=Progress(quiet), **more)
    if form in (Format.json, Format.jsonl):
        emit_one(found.to_dict(), form)
    elif form is Format.csv:
        emit(_lines(found, None), form)
    else:
        _print(found)
    note_truncated(bound, quiet)
    if to is not None:
        say(f"{to}: the rows to label; put a label into each and add them to the training file.", quiet)


def _lines(found: Improvement, most: int | None) -> list[dict[str, Any]]:
    from adaptree.analysis.improve import answer
    from adaptree.kinds.findings import cut
    from adaptree.reports.text import printable

    lines = []
    for each in found.offered:
        parts = [each.text] if isinstance(each.text, str) else list(each.text)
        text = " | ".join(parts) if most is None else cut(" | ".join(printable(part[:1000]) for part in parts), most)
        said = answer(each.prediction)
        shown = "; ".join(map(str, said)) if isinstance(said, list) else said
        lines.append({"row": each.row, "prediction": shown, "doubt": each.doubt, "text": text})
    return lines


def _print(found: Improvement) -> None:
    left = ", ".join(f"{reason} {count:,}" for reason, count in found.left_out.items() if count)
    out().print(
        f"{len(found.offered):,} of {found.rows:,} rows to label next for {found.task} ({found.strategy})"
        f"{f'; not offered: {left}' if left else ''}",
        soft_wrap=True,
    )
    lines = _lines(found, LONGEST)
    emit(lines, Format.table, {key: key for key in lines[0]})
