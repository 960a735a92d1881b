"""adaptree methods"""

from __future__ import annotations

from typing import Any

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, out


@app.command()
@options.takes("base")
def methods(
    form: shared.FormatOption = Format.table,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """List the methods: what each trains, what that costs on a base, and when to choose it."""
    from adaptree import api

    rows = api.methods(**options.given(values))
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
