"""adaptree search"""

from __future__ import annotations

from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, fitting, say, size

TITLES = {
    "task": "task", "match": "match", "why": "why", "kind": "kind", "method": "method", "metric": "metric",
    "score": "score", "trained": "trained", "percent": "% of base", "size": "size",
}  # fmt: skip
LEAST = ("trained", "metric", "kind", "method", "percent")
"""Columns that a narrow terminal does without, in this order."""
WIDEST, NARROWEST = 60, 24
"""Characters of the reason in a table, and in a line of it on a narrow terminal."""


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(help="What to search for, in names, labels, notes, examples and more.")],
    meaning: Annotated[
        bool,
        typer.Option("--meaning/--words", help="Rank by meaning, with the base's vectors, or by the words themselves."),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Tasks shown.")] = 10,
    base: Annotated[str, typer.Option(help="For --meaning: the base whose vectors are compared.")] = "minilm",
    store: shared.StoreOption = None,
    index: shared.IndexOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Find tasks in the store by words or by meaning, the best match first."""
    from adaptree.hub.search import search as find
    from adaptree.tasks.store import Store

    asked = " ".join(words)
    found = find(asked, Store(store, index=index), meaning=meaning, limit=limit, base=base)
    if form is not Format.table:
        emit((hit.to_dict() for hit in found), form)
    else:
        rows = [
            {
                "task": f"{s.name}@{s.version}", "match": hit.match,
                "why": hit.why if len(hit.why) <= WIDEST else f"{hit.why[: WIDEST - 1]}…", "kind": s.kind,
                "method": s.method, "metric": s.metric, "score": s.score, "trained": s.trained,
                "percent": s.trained_percent, "size": size(s.bytes),
            }
            for hit in found
            for s in (hit.summary,)
        ]  # fmt: skip
        emit(rows, form, fitting(rows, TITLES, LEAST, why=NARROWEST))
    if not found:
        say(f"nothing found for '{asked}'.  {'adaptree list' if meaning else 'Try --meaning, or adaptree list'}", quiet)
