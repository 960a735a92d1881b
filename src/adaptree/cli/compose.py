"""adaptree compose"""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, emit, emit_one, out, say, size
from adaptree.cli.train import report
from adaptree.errors import TrainingError


@app.command()
def compose(
    expression: Annotated[str, typer.Argument(help='"fuse(mnli, qqp)", "average(a, b)", "stack(lang/qu, ner)", …')],
    name: Annotated[str, typer.Option("--name", help="The new task's name.")],
    data: Annotated[str | None, typer.Option("--train", help="Of fuse(…): the data that it learns on.")] = None,
    base: options.BaseOption = None,
    kind: Annotated[str | None, typer.Option(help="As in train. Default: guessed from the file.")] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    validation: Annotated[str | None, typer.Option(help="Validation file. Default: a fifth of the data.")] = None,
    test: Annotated[str | None, typer.Option(help="Test file, scored once at the end.")] = None,
    encoding: Annotated[str | None, typer.Option(help="How the file spells its characters, e.g. latin-1.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data. Default: 20 on few rows to 4 on many.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. Default: the method's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Default: 32.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest text in tokens. Default: 256.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after this many batches.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: 0.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What chooses the best epoch. Default: accuracy or pearson.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, first or last. Default: as the base was pretrained.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without a better score. Default: 5.")
    ] = None,
    class_weights: Annotated[bool, typer.Option("--class-weights", help="Give rare labels the same say.")] = False,
    accumulate: Annotated[int | None, typer.Option(help="Compute a batch in so many parts: less memory.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped or killed.")] = False,
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
    from adaptree import api, composing
    from adaptree.store import Store

    asked: dict[str, Any] = {
        "kind": kind, "text": text, "text_pair": text_pair, "label": label, "validation": validation, "test": test,
        "encoding": encoding, "epochs": epochs, "lr": lr, "batch_size": batch_size, "max_length": max_length,
        "max_steps": max_steps, "seed": seed, "metric": metric, "pooling": pooling, "patience": patience,
        "class_weights": class_weights or None, "accumulate": accumulate, "resume": resume or None,
    }  # fmt: skip
    settings = {key: value for key, value in asked.items() if value is not None}
    where = Store(store)
    try:
        with Progress(quiet) as progress:
            bound = composing.compose(
                expression, name=name, store=where, data=data, base=base, device=device, threads=threads,
                trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, on_event=progress, **settings,
            )  # fmt: skip
    except KeyboardInterrupt:
        if data is None or not any(api.run_folder(where, name).glob("*.safetensors")):
            raise
        raise TrainingError("stopped; what was trained so far is kept.", hint=f"Go on with: {_again()}") from None
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
    if record.version > 1:
        say(f"'{name}' was there before: this is version {record.version}, the older ones are kept.", quiet)
    if not record.settings.get("finished", True):
        say(f"✘ stopped: the best so far (epoch {record.settings['best_epoch']}) is kept.  Go on with: {_again()}")
        return 1
    if not quiet and form is Format.table:
        say(f"adaptree explain {name} …" if data is not None else f"adaptree evaluate {name} DATA")
    return 0


def _again() -> str:
    """The command that goes on with this run."""
    return shlex.join(["adaptree", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
