"""adaptree check"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, counted, emit, emit_one, out

if TYPE_CHECKING:
    from adaptree.data.check import Report

VALIDATION = "Validation file, checked for texts that are also in the data."


@app.command()
@options.takes("base", "kind", *options.COLUMNS, "merge_labels", "max_length", "windows", "seed", validation=VALIDATION)
def check(
    data: Annotated[str, typer.Argument(help="csv, tsv, xlsx, json, parquet, txt, conll, also .gz or .xz; a folder.")],
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    store: shared.NoStore = None,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Show what is in a file, what `train` would do with it, and what looks wrong."""
    from adaptree import api

    report = api.check(data, on_event=Progress(quiet), **options.given(values))
    if form is Format.table:
        _print(report)
    else:
        emit_one(report.to_dict(), form)


def _print(report: Report) -> None:
    console = out()
    columns = {what: column for what, column in report.columns.items() if column and what != "separator"}
    read = ", ".join(f"{what} from '{column}'" for what, column in columns.items())
    console.print(f"{report.name}: {counted(report.rows, 'row')}; {read}")
    if report.unused:
        console.print(f"  not read: {', '.join(map(repr, report.unused))}", soft_wrap=True)
    for what, count in report.left_out.items():
        if count:
            console.print(f"  left out: {counted(count, 'row')} {what}")
    console.print(f"kind: {report.kind}, because {report.why}")
    if report.balance is not None:
        rows = [{"label": str(s.label), "rows": s.rows, "percent": f"{s.percent:.1f}"} for s in report.balance[:20]]
        emit(rows, Format.table)
        if len(report.balance) > 20:
            console.print(f"  … and {len(report.balance) - 20} more labels")
    if report.spread is not None:
        s = report.spread
        console.print(f"label: {s.min:g} to {s.max:g}, mean {s.mean:.3g}, standard deviation {s.std:.3g}")
    if report.lengths is not None:
        n = report.lengths
        where = "" if n.measured >= report.rows else f" (measured on {n.measured:,} rows spread over the file)"
        console.print(
            f"tokens: mean {n.mean:.0f}, median {n.median:.0f}, 95 % up to {n.p95:.0f}, longest {n.max:,}{where}"
        )
        fate = "are read in windows" if n.windowed else "would be cut"
        most = f"{n.max_length} tokens" + ("" if n.windowed else " (--max-length)")
        console.print(f"  {n.longer:,} texts ({n.longer_percent:.1f} %) are longer than {most} and {fate}")
    console.print(f"repeated texts: {report.duplicates:,}; texts with conflicting labels: {report.conflicts:,}")
    for conflict in report.conflict_examples:
        console.print(f"  {' / '.join(map(str, conflict.labels))}: {conflict.text[:100]}")
    console.print(
        f"train would use {counted(report.train_rows, 'row')} to train on and {report.validation_rows:,} to validate"
    )
    for problem in report.problems:
        console.print(f"! {problem}")
    if not report.problems:
        console.print("nothing looks wrong.")
