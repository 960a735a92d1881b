"""adaptree compose"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options, runs
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, emit, emit_one, out, say, size

NOT_HERE = ("name", "method", "on", "base", "fast", "search", "joint", "temperature")
FUSED = [name for name in (*options.RUN, *options.SETTINGS) if name not in NOT_HERE]


@app.command()
@options.takes(
    *FUSED,
    required=("name",),
    name="The new task's name.",
    on="For fuse(…): what its parts were trained on.",
    base=options.OF_TASK,
)
def compose(
    expression: Annotated[str, typer.Argument(help='"fuse(mnli, qqp)", "average(a, b)", "stack(lang/qu, ner)", …')],
    data: Annotated[str | None, typer.Option("--train", help="For fuse(…): the data that it is trained on.")] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> int:
    """Keep a composition of tasks as a task of its own; fuse(…) is trained on --train."""
    from adaptree import api
    from adaptree.tasks.store import Store
    from adaptree.training.composing import made_of
    from adaptree.training.run import checkpoint_folder

    wanted, where = options.given(values), Store(store)
    with runs.stoppable(checkpoint_folder(where, wanted["name"])), Progress(quiet) as progress:
        bound = api.compose(expression, store=where, data=data, on_event=progress, **wanted)
    task = bound.task
    record = task.record
    made = {"made_of": made_of(record)}
    if form is not Format.table:
        emit_one({**api.result(task), **made}, form)
    elif record.metrics:
        runs.report(api.result(task), record)
    else:
        row = {"task": record.reference, **made, "method": record.method, "base": record.base["name"]}
        emit([{**row, "size": size(task.bytes)}], form)
        out().print("It has no scores yet: those of its parts are not its own.", soft_wrap=True)
    code = runs.finish([record], quiet)
    if not code and not quiet and form is Format.table:
        say(f"adaptree explain {record.name} …" if data is not None else f"adaptree evaluate {record.name} DATA")
    return code
