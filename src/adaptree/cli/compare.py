"""adaptree compare"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options, runs
from adaptree.cli.app import app
from adaptree.cli.show import Format, comparison_progress, emit, emit_one, out, say
from adaptree.errors import UsageError

METRIC = "Metric that is compared. Default: the kind's own, such as accuracy."
TEST = "Test file, opened when the settings are chosen."
READ = ("base", "validation", "objective", "batch_size", "max_length", *options.COLUMNS, *options.COMPUTING)


@app.command()
@options.takes(*READ, "merge_labels", "kind", metric=METRIC, test=TEST)
def compare(
    data: Annotated[str, typer.Argument(help="csv, tsv, xlsx, json, parquet, txt, conll, also .gz or .xz; a folder.")],
    method: Annotated[list[str], typer.Option("--method", help="full, houlsby:64, …; give it several times.")],
    seeds: Annotated[int, typer.Option(min=1, help="How often each method is trained: seeds 0, 1, …")] = 3,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for everything; finished cells there are not run again.")
    ] = Path("comparison"),
    rows: Annotated[
        int | None,
        typer.Option(min=2, help="Train on at most this many rows, validate on half as many: a seeded sample."),
    ] = None,
    epochs: Annotated[str | None, typer.Option(help="5, or several to try: 5,20. Default: by the rows.")] = None,
    lr: Annotated[str | None, typer.Option(help="1e-3, or several to try: 3e-4,1e-3. Default: the method's.")] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of the table and the figure. Default: the file and the base.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run the cells that failed once more.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Run so many cells at a time.")] = 1,
    cluster: shared.ClusterOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    store: shared.NoStore = None,
    debug: shared.Debug = False,
    **values: Any,
) -> int:
    """Compare methods on your data: score against trained parameters, as a table and a figure."""
    from adaptree import api
    from adaptree.analysis.compare import report

    with runs.keeping_cells(folder):
        result = api.compare(
            data, methods=method, out=folder, seeds=seeds, rows=rows, epochs=_numbers("epochs", epochs, int),
            lr=_numbers("lr", lr, float), title=title, retry=retry, jobs=jobs, cluster=cluster,
            command=runs.typed_command(), on_event=partial(comparison_progress, quiet=quiet), **options.given(values),
        )  # fmt: skip
    if form is Format.table:
        emit(report.table(result), form, report.titles(result))
        out().print("● on the Pareto front: nothing that trains as few parameters scores better", soft_wrap=True)
        for line in report.failures(result):
            say(f"✘ {line}")
        say(f"{folder / 'figure.png'}   {folder / 'table.md'}", quiet)
    elif form is Format.csv:
        emit([_flat(row) for row in result["methods"]], form)
    else:
        emit_one(result, form)
    return 0 if any("scores" in row for row in result["methods"]) else 1


def _numbers(name: str, words: str | None, kind: type) -> list[Any]:
    try:
        return [kind(word) for word in (words or "").split(",") if word.strip()]
    except ValueError:
        raise UsageError(
            f"--{name} '{words}' is not a list of numbers.", hint=f"--{name} {'5,20' if kind is int else '3e-4,1e-3'}"
        ) from None


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a method's row with a column for each number; a failed one leaves them empty."""
    found: dict[str, Any] = {"method": row["method"]}
    for part in ("validation", "test"):
        scores = row.get("scores", {}).get(part, {})
        found |= {part: scores.get("mean"), f"{part}_spread": scores.get("spread")}
    keys = ("trained", "trained_percent", "bytes", "seconds", "memory", "peak_memory", "base_memory", "seeds", "pareto")
    found |= {key: row.get(key) for key in keys}
    return found | {"error": row["failed"][0]["error"] if row["failed"] else ""}
