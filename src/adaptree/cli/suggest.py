"""adaptree suggest"""

from __future__ import annotations

import shlex
import sys
from functools import partial
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, count, emit, emit_one, out, say
from adaptree.data.events import Event

KIND = "classify or regress. Default: guessed from the file."
SHOWN = 3
"""How many of the tasks that were not ranked are printed; `--format json` has all."""


@app.command()
@options.takes("base", *options.COLUMNS, *options.COMPUTING, kind=KIND, seed="Seed of the sample of rows. [default: 0]")
def suggest(
    data: Annotated[str, typer.Argument(help="The labelled file of a new task.")],
    top: Annotated[int, typer.Option(min=1, help="How many tasks to show and to fuse.")] = 5,
    rows: Annotated[int, typer.Option(min=20, help="At most this many rows of the file are used.")] = 450,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Rank the stored tasks by how much they help to learn this file, and print the command that fuses them."""
    from adaptree import api
    from adaptree.tasks.store import Store

    wanted = options.given(values)
    found = api.suggest(data, Store(store), top=top, rows=rows, on_event=partial(_progress, quiet=quiet), **wanted)
    command = found.command if store is None else f"{found.command} --store {shlex.quote(str(store))}"
    if form in (Format.json, Format.jsonl):
        emit_one({**found.to_dict(), "command": command}, form)
        return
    if form is Format.csv:
        emit(found.to_dict()["tasks"], form)
        return
    lines = [
        {
            "task": gain.task,
            "gain": f"{gain.gain:+.4f}",
            "interval": f"{gain.low:+.4f} - {gain.high:+.4f}",
            "sure": gain.sure,
            "fusable": gain.task not in found.unfusable,
            "rows": gain.rows,
        }
        for gain in found.gains[:top]
    ]
    emit(lines, form, {key: key for key in lines[0]} | {"interval": "95 %"})
    out().print(found.verdict, soft_wrap=True)
    shown = [line["task"] for line in lines]
    for name, why in found.unfusable.items():
        if name in shown:
            say(f"'{name}' cannot be fused: {why}.", quiet)
    for name, why in list(found.skipped.items())[:SHOWN]:
        say(f"'{name}' is not ranked: {why}.", quiet)
    if len(found.skipped) > SHOWN:
        say(f"{len(found.skipped) - SHOWN} more are not ranked (--format json says why).", quiet)
    out().print(command, soft_wrap=True)


def _progress(event: Event, quiet: bool) -> None:
    """Print a line for each stage, and on a terminal one that counts."""
    if quiet:
        return
    if event["event"] == "note":
        say(f"{'warning' if event.get('warning') else 'note'}: {event['text']}")
    elif event["event"] == "stage":
        say(f"{event['tasks']:,} tasks on {event['rows']:,} rows")
    elif event["event"] == "probe" and sys.stderr.isatty():
        count(f"{event['number']:,}/{event['tasks']:,}", event["number"] == event["tasks"])
