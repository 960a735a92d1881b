"""adaptree rebase"""

from __future__ import annotations

from typing import Annotated

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit_one, out, say


@app.command()
def rebase(
    task: Annotated[str, typer.Argument(help="A task's name, or name@version.")],
    base: Annotated[str, typer.Option("--base", help="The base to put it into: a folder, or a name on the hub.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name. Default: a new version of it.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Put a task, as it is, into an aligned base of the same shape."""
    from adaptree import api
    from adaptree.models.opening import REBASED
    from adaptree.tasks.store import Store
    from adaptree.training.rebase import rebase as put

    moved = put(
        Store(store), task, base, name, device=device, threads=threads, trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )  # fmt: skip
    record = moved.record
    came = record.extra[REBASED]
    if form is Format.table:
        text = f"{record.reference}: {record.method} on {record.base['name']}, as {came['reference']} on {came['from']}"
        out().print(text, soft_wrap=True)
    else:
        emit_one({**api.result(moved), REBASED: came}, form)
    say(f"it has no score there yet.  adaptree evaluate {record.name} DATA", quiet)
