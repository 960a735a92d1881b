"""adaptree list, show, history, remove"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, page, say, size

TITLES = {
    "task": "task", "kind": "kind", "method": "method", "base": "base", "metric": "metric", "score": "score",
    "trained": "trained", "percent": "% of base", "size": "size", "created": "created",
}  # fmt: skip


@app.command("list")
def list_(
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List the tasks in the store, the newest version of each."""
    from adaptree.tasks.store import Store

    where = Store(store)
    found = where.list()
    _emit(found, form)
    if not found:
        say(f"no tasks in {where.path} yet.  adaptree train DATA --name NAME", quiet)


@app.command()
def history(
    task: Annotated[str, shared.task_argument("A task's name.")],
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List all versions of a task."""
    from adaptree.tasks.store import Store

    _emit(Store(store).history(task), form)


@app.command()
def show(
    task: Annotated[str, shared.task_argument("A task's name, or name@version.")],
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Show a task's card: laid out on a terminal, Markdown in a pipe, and with --format json its whole record."""
    from adaptree.reports import card
    from adaptree.tasks.record import read_record
    from adaptree.tasks.store import Store

    folder = Store(store).path_of(task)
    record = read_record(folder, called=f"{task.partition('@')[0]}@{folder.name}")
    if form is not Format.table:
        emit_one(record.to_json(), form)
    elif sys.stdout.isatty():
        page(card.body(record))
        if figures := sorted(folder.glob("*.svg")):
            say(f"figures: {'   '.join(map(str, figures))}", quiet)
    else:
        page(card.write(record))


@app.command()
def remove(
    task: Annotated[str, shared.task_argument("A task's name (all versions), or name@version.")],
    force: Annotated[bool, typer.Option("--force", help="Remove it even if other tasks are made of it.")] = False,
    store: shared.StoreOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Remove a task, or one version of it."""
    from adaptree.tasks.store import Store

    count = Store(store).remove(task, force=force)
    say(f"removed {task} ({count} version{'s' if count != 1 else ''})", quiet)


def _emit(found: Any, form: Format) -> None:
    if form is not Format.table:
        emit((asdict(summary) for summary in found), form)
        return
    rows = [
        {
            "task": f"{s.name}@{s.version}", "kind": s.kind if not s.problem else f"✘ {s.problem}", "method": s.method,
            "base": s.base, "metric": s.metric, "score": s.score, "trained": s.trained, "percent": s.trained_percent,
            "size": size(s.bytes), "created": s.created[:16].replace("T", " "),
        }
        for s in found
    ]  # fmt: skip
    emit(rows, form, TITLES)
