"""adaptree rebase"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit_one, out, say


@app.command()
@options.takes(*options.COMPUTING)
def rebase(
    task: Annotated[str, shared.task_argument("A task's name, or name@version.")],
    base: Annotated[str, typer.Option("--base", help="The base to put it into: a folder, or a name on the hub.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name. Default: a new version of it.")] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Put a task unchanged into an aligned base of the same shape."""
    from adaptree import api
    from adaptree.tasks.record import REBASED
    from adaptree.tasks.store import Store

    moved = api.rebase(Store(store), task, base, name, **options.given(values))
    record = moved.record
    source = record.extra[REBASED]
    if form is Format.table:
        here, there = f"{record.method} on {record.base['name']}", f"{source['reference']} on {source['from']}"
        out().print(f"{record.reference}: {here}, as {there}", soft_wrap=True)
    else:
        emit_one({**api.result(moved), REBASED: source}, form)
    say(f"it has no score there yet.  adaptree evaluate {record.name} DATA", quiet)
