"""adaptree report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, say


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A folder in which each experiment has a folder of its own.")],
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    store: shared.NoStore = None,
    debug: shared.Debug = False,
) -> None:
    """Gather experiments' tables and figures into report.html, which opens offline, and report.md."""
    from adaptree import api

    found = api.report(results)
    emit(found.rows(), form)
    say(f"{len(found.experiments):,} experiments:   {results / 'report.html'}   {results / 'report.md'}", quiet)
