"""adaptree methods"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, out


@app.command()
def methods(
    base: options.BaseOption = "minilm",
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    store: options.NoStore = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """The ways of tuning: what each trains, what that costs on a base, and when to choose it."""
    from adaptree import api

    rows = api.methods(base or "minilm")
    if form is not Format.table:
        emit(rows, form)
        return
    shown = [{**row, "parameters": row["parameters"] if row["refused"] is None else None} for row in rows]
    titles = {
        "spelling": "method",
        "trains": "trains",
        "parameters": "weights",
        "percent": "% of base",
        "choose": "when to choose it",
    }
    emit(shown, form, titles)
    for row in rows:
        if row["refused"]:
            out().print(f"{row['method']}: not on this base. {row['refused']}")
    _papers(rows)


def _papers(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        out().print(f"{row['method']:>22}  {row['paper']}")
