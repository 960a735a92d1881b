"""adaptree doctor"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, out


@app.command()
def doctor(
    base: Annotated[str, typer.Option(help="The base that tasks are trained on: a name, or a folder.")] = "minilm",
    url: Annotated[str | None, typer.Option(help="The address of a running server, to be looked at too.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="ADAPTREE_KEY", help="An API key to ask it with. Default: $ADAPTREE_KEY.")
    ] = None,
    cluster: shared.ClusterOption = None,
    store: shared.StoreOption = None,
    index: shared.IndexOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Check an installation or a deployment, and say what to do about what is wrong. Exit code 1 if anything is."""
    from adaptree import api
    from adaptree.tasks.store import Store

    wrong, found = False, []
    for check in api.doctor(Store(store, index=index), base=base, url=url, key=key, cluster=cluster):
        wrong = wrong or check.ok is False
        found.append(check)
        if form is Format.table and not (quiet and check.ok):
            out().print(check.line, soft_wrap=True)
    if form is not Format.table:
        emit((asdict(check) for check in found), form)
    if wrong:
        raise typer.Exit(1)
