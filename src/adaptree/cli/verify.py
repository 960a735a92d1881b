"""adaptree verify"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, count, emit, emit_one, out, say
from adaptree.data.events import Event

if TYPE_CHECKING:
    from adaptree.hub.verify import Verification

MOST_ROWS = 30
"""Of a larger store, the table shows only what is not fine."""


@app.command()
@options.takes("device", "trust_remote_code", "allow_pickle")
def verify(
    tasks: Annotated[
        list[str] | None, shared.task_argument("Tasks, with their parts; name@version is one version. Default: all.")
    ] = None,
    probes: Annotated[
        bool, typer.Option("--probes", help="Also load the bases, and compute the answers to each task's probe again.")
    ] = False,
    repair: Annotated[
        str | None,
        typer.Option(metavar="PEER", help="Restore damaged files from another store, and redraw damaged cards."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write what was found, with every file's digest, to FILE.json or FILE.html.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Say what has changed since a certificate: its FILE.json.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many processes share the work.")] = 1,
    cluster: shared.ClusterOption = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Check every file of the store against its digests. Exit code 1 if anything is damaged."""
    from adaptree import api
    from adaptree.tasks.store import Store

    found, changes = api.verify(
        Store(store), tasks or (), probes=probes, repair=repair, certificate=certificate, against=against,
        jobs=jobs, cluster=cluster, on_event=Verified(quiet), **options.given(values),
    )  # fmt: skip
    if form is not Format.table:
        shown = found.to_dict() | ({} if against is None else {"changes": [asdict(change) for change in changes]})
        emit(shown["rows"], form) if form in (Format.csv, Format.jsonl) else emit_one(shown, form)
    else:
        _table(found, bool(tasks))
        if against is not None:
            emit([asdict(change) | {"files": ", ".join(change.files)} for change in changes], form)
        out().print(found.sentence, soft_wrap=True)
        _notes(found, quiet)
    if not found.ok or any(change.state == "changed" for change in changes):
        raise typer.Exit(1)


def _table(found: Verification, named: bool) -> None:
    """Print a line for each version; of a large store, only for those that are not fine."""
    few = named or len(found.rows) <= MOST_ROWS
    rows = [
        {
            "task": row.task or "(store)", "state": row.state, "files": len(row.files), "weights": row.weights[:12],
            "answers": "-" if row.probe is None else str(row.probe),
            "problem": "; ".join(f"{file}: {why}" for file, why in row.damaged.items()) or "-",
        }
        for row in found.rows
        if row.files and (few or row.state != "ok")
    ]  # fmt: skip
    probed = any(row.probe is not None for row in found.rows)
    columns = ["task", "state", "files", "weights", *["answers"] * probed, *["problem"] * bool(found.damaged)]
    emit(rows, Format.table, {name: name for name in columns})


def _notes(found: Verification, quiet: bool) -> None:
    """Say what was repaired, what is not covered or not ours, and what to do about the damage."""
    from adaptree.hub.repair import what_to_do

    for row in found.rows:
        for file, how in row.repaired.items():
            say(f"repaired: {file}, {how}", quiet)
        for note in row.notes:
            say(f"note: {row.task}{': ' if row.task else ''}{note}", quiet)
        for file in row.unknown:
            say(f"note: {file} is not a file of adaptree's", quiet)
    for base in found.bases:
        if base.state != "ok":
            say(f"{'✘' if base.state == 'damaged' else 'note:'} {base.why}", quiet)
    for row in found.damaged:
        say(f"✘ {row.problem}.  {what_to_do(row)}")


class Verified(Progress):
    """Shows how many versions were verified, on one line of a terminal."""

    def _verified(self, event: Event) -> None:
        if sys.stderr.isatty():
            count(f"{event['number']:,} of {event['of']:,} versions verified", event["number"] == event["of"])

    def _probing(self, event: Event) -> None:
        if sys.stderr.isatty():
            say(f"{event['task']} on {event['base']}")
