"""adaptree suggest"""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, out, say

SHOWN = 3
"""How many of those that were skipped are named; `--format json` has all."""


@app.command()
def suggest(
    data: Annotated[str, typer.Argument(help="The labelled file of a new task.")],
    top: Annotated[int, typer.Option(min=1, help="How many tasks to show and to fuse.")] = 5,
    rows: Annotated[int, typer.Option(min=20, help="How many rows of the file to look at, at most.")] = 450,
    base: options.BaseOption = "minilm",
    kind: Annotated[str | None, typer.Option(help="classify or regress. Default: guessed from the file.")] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    encoding: options.Encoding = "utf-8",
    seed: Annotated[int, typer.Option(help="Which rows are looked at.")] = 0,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Which of the stored tasks help to learn this one, and the command that fuses them."""
    from adaptree.analysis.suggest import suggest as ask
    from adaptree.tasks.store import Store

    found = ask(
        data, Store(store), base or "minilm", top=top, rows=rows, seed=seed, kind=kind, text=text,
        text_pair=text_pair, label=label, encoding=encoding, device=device, threads=threads,
        trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, on_event=lambda event: _tell(event, quiet),
    )  # fmt: skip
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


def _tell(event: dict[str, Any], quiet: bool) -> None:
    """How it goes: a line for each stage, and on a terminal one that counts."""
    if quiet:
        return
    if event["event"] == "stage":
        say(f"{event['tasks']:,} tasks on {event['rows']:,} rows")
    elif event["event"] == "probe" and sys.stderr.isatty():
        end = "\n" if event["number"] == event["tasks"] else ""
        print(f"\r{event['number']:,}/{event['tasks']:,}", end=end, file=sys.stderr, flush=True)
