"""adaptree evaluate"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import note_int8, note_truncated, note_unfinished, split_options, use_decoding
from adaptree.cli.show import Format, Progress, counted, emit, emit_one, out

MOST_UNKNOWN = 10
"""Unknown labels that are listed."""


@app.command()
@options.decodes
@options.takes(*options.COLUMNS, *options.COMPUTING, base=options.OF_TASK)
def evaluate(
    task: Annotated[str, shared.task_argument("A task's name, name@version, or a composition: stack(a, b).")],
    data: Annotated[str, typer.Argument(help="A labelled file.")],
    int8: shared.Int8 = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Score a task on a labelled file."""
    from adaptree import api
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    where = Store(store)
    decoding = options.decoding(values)
    reading, opening = split_options(values)
    bound = open_task(where, task, int8=int8, evaluating=True, **opening)
    use_decoding(bound, decoding)
    result = api.evaluate(bound, data, store=where, on_event=Progress(quiet), **reading)
    note_int8(bound, quiet)
    note_truncated(bound, quiet)
    note_unfinished(bound, quiet)
    if form is not Format.table:
        emit_one(result, form)
        return
    intervals = result["intervals"]["test"]
    rows = [
        {
            "metric": key,
            "value": value,
            "interval": "{:.4f} - {:.4f}".format(*intervals[key]) if key in intervals else None,
        }
        for key, value in result["metrics"]["test"].items()
    ]
    emit(rows, form, {"metric": "", "value": f"{result['task']}, int8" if int8 else result["task"], "interval": "95 %"})
    out().print(f"{result['rows']:,} rows")
    for why, count in result.get("left_out", {}).items():
        out().print(f"{counted(count, 'row')} {why}: not scored")
    unknown = list(result.get("unknown_labels", {}).items())
    for label, count in unknown[:MOST_UNKNOWN]:
        out().print(f"'{label}' is no label of this task: {counted(count, 'time')}, counted as wrong", soft_wrap=True)
    if len(unknown) > MOST_UNKNOWN:
        out().print(f"… and {len(unknown) - MOST_UNKNOWN:,} more such labels")
