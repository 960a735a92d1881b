"""adaptree ablate"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import note_truncated, split_options
from adaptree.cli.show import Format, Progress, count, emit, emit_one, out, say
from adaptree.data.events import Event


@app.command()
@options.takes(*options.COLUMNS, *options.COMPUTING, base=options.OF_TASK)
def ablate(
    task: Annotated[str, shared.task_argument("A task's name, name@version, or a composition: stack(a, b).")],
    data: Annotated[str, typer.Argument(help="A labelled file that the task was not trained on.")],
    within: Annotated[
        float, typer.Option(min=0, help="How many points one is ready to lose; of perplexity, per cent.")
    ] = 0.5,
    keep_norms: Annotated[
        bool | None,
        typer.Option(
            "--keep-norms/--drop-norms",
            help="Whether the task's own norms stay where its adapters are removed. Default: they do, as in the paper, "
            "unless the task has nothing else.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for figure.png, table.md and ablation.json.")
    ] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Score a task without the adapters of every span of layers, and say which can go; nothing is trained."""
    from adaptree import api
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    reading, opening = split_options(values)
    bound = open_task(Store(store), task, **opening)
    found = api.ablate(
        bound, data, within=within, keep_norms=keep_norms, out=folder, on_event=Scored(quiet),
        **reading,
    )  # fmt: skip
    if form is Format.csv:
        emit([asdict(span) for span in found.spans], form)
    elif form is not Format.table:
        emit_one(found.to_dict(), form)
    else:
        titles = {"first": "from \\ to", **{str(layer): str(layer) for layer in found.layers}}
        emit(found.table(), form, titles)
        kept = ", norms kept" if found.keep_norms else ""
        between = "" if found.interval is None else " (95 %: {:.4f} - {:.4f})".format(*found.interval)
        lines = [
            f"change of {found.metric} in {found.unit} without the {found.removed} of these layers{kept}",
            f"the whole task: {found.score:.4f}{between} on {found.rows:,} rows",
            found.sentence,
            found.command,
        ]
        for line in filter(None, lines):
            out().print(line, soft_wrap=True, markup=False, highlight=False)
    note_truncated(bound, quiet)
    if folder is not None:
        say(f"{folder / 'figure.png'}   {folder / 'table.md'}   {folder / 'ablation.json'}", quiet)


class Scored(Progress):
    """Shows how many rows were scored: on one line of a terminal, by tenths in a pipe."""

    tenths = 0

    def _scored(self, event: Event) -> None:
        rows, of = event["rows"], event["of"]
        text = f"{rows:,} of {of:,} rows scored, whole and without each of {event['spans']} spans of layers"
        if sys.stderr.isatty():
            count(text, rows == of)
        elif (tenths := 10 * rows // of) > self.tenths:
            self.tenths = tenths
            say(text)
