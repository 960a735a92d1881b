"""adaptree compose"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli import runs
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, emit, emit_one, out, say, size
from adaptree.cli.train import report


@app.command()
def compose(
    expression: Annotated[str, typer.Argument(help='"fuse(mnli, qqp)", "average(a, b)", "stack(lang/qu, ner)", …')],
    name: Annotated[str, typer.Option("--name", help="The new task's name.")],
    data: Annotated[str | None, typer.Option("--train", help="Of fuse(…): the data that it learns on.")] = None,
    on: Annotated[str | None, typer.Option("--on", help="Of fuse(…): what its parts were trained on.")] = None,
    base: options.BaseOption = None,
    kind: runs.Kind = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    validation: runs.Validation = None,
    test: runs.Test = None,
    encoding: Annotated[str | None, typer.Option(help="How the file spells its characters, e.g. latin-1.")] = None,
    epochs: runs.Epochs = None,
    lr: runs.Lr = None,
    batch_size: Annotated[int | None, typer.Option(help="Default: 32.")] = None,
    max_length: runs.MaxLength = None,
    max_steps: runs.MaxSteps = None,
    seed: Annotated[int | None, typer.Option(help="Default: 0.")] = None,
    metric: runs.Metric = None,
    pooling: runs.Pooling = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without a better score. Default: 5.")
    ] = None,
    class_weights: runs.ClassWeights = False,
    accumulate: Annotated[int | None, typer.Option(help="Compute a batch in so many parts: less memory.")] = None,
    resume: runs.Resume = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Keep a composition of tasks as a task of its own; fuse(…) is trained on --train."""
    from adaptree import api
    from adaptree.tasks.runs import run_folder
    from adaptree.tasks.store import Store
    from adaptree.training import composing

    asked: dict[str, Any] = {
        "on": on, "kind": kind, "text": text, "text_pair": text_pair, "label": label, "validation": validation,
        "test": test, "encoding": encoding, "epochs": epochs, "lr": lr, "batch_size": batch_size,
        "max_length": max_length, "max_steps": max_steps, "seed": seed, "metric": metric, "pooling": pooling,
        "patience": patience, "class_weights": class_weights or None, "accumulate": accumulate,
        "resume": resume or None,
    }  # fmt: skip
    settings = {key: value for key, value in asked.items() if value is not None}
    where = Store(store)
    with runs.stoppable(run_folder(where, name)), Progress(quiet) as progress:
        bound = composing.compose(
            expression, name=name, store=where, data=data, base=base, device=device, threads=threads,
            trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, on_event=progress, **settings,
        )  # fmt: skip
    task = bound.task
    record = task.record
    made = {"made_of": composing.made_of(record)}
    if form is not Format.table:
        emit_one({**api.result(task), **made}, form)
    elif record.metrics:
        report(api.result(task))
    else:
        row = {"task": record.reference, **made, "method": record.method, "base": record.base["name"]}
        emit([{**row, "size": size(task.bytes)}], form)
        out().print("It has no scores yet: those of its parts are not its own.", soft_wrap=True)
    code = runs.tell_end([record], quiet)
    if not code and not quiet and form is Format.table:
        say(f"adaptree explain {name} …" if data is not None else f"adaptree evaluate {name} DATA")
    return code
