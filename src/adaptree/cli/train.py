"""adaptree train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli import runs
from adaptree.cli.app import app
from adaptree.cli.config import Config
from adaptree.cli.show import Format, Progress, emit, emit_one, out, say, size
from adaptree.errors import UsageError


@app.command()
def train(
    data: Annotated[
        list[str],
        typer.Argument(
            help="csv, tsv, jsonl, parquet, txt, conll, SQuAD's json, also .gz or .xz; several with --joint."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="The task's name.")],
    base: options.BaseOption = "minilm",
    method: Annotated[
        str, typer.Option(help="houlsby, houlsby:64, in full houlsby(size=64, …), or fuse(a, b) of other tasks.")
    ] = "houlsby",
    on: Annotated[
        str | None, typer.Option("--on", help="Train on top of this task, or composition, which stays as it is.")
    ] = None,
    size_: Annotated[
        int | None, typer.Option("--size", help="The method's main number: a bottleneck's width, LoRA's rank, …")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Only these layers: 3-5, 0,2,4 or top:2.")] = None,
    kind: runs.Kind = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    validation: runs.Validation = None,
    test: runs.Test = None,
    encoding: options.Encoding = "utf-8",
    epochs: runs.Epochs = None,
    lr: runs.Lr = None,
    batch_size: Annotated[int, typer.Option()] = 32,
    max_length: runs.MaxLength = None,
    max_steps: runs.MaxSteps = None,
    seed: Annotated[int, typer.Option()] = 0,
    metric: runs.Metric = None,
    pooling: runs.Pooling = None,
    patience: Annotated[int, typer.Option(help="Stop after this many epochs without a better score.")] = 5,
    windows: Annotated[
        bool, typer.Option("--windows", help="Read longer texts whole, in windows whose votes are pooled.")
    ] = False,
    whole_words: Annotated[
        bool, typer.Option("--whole-words", help="Of kind mlm: hide all pieces of a word together.")
    ] = False,
    class_weights: runs.ClassWeights = False,
    dropout: Annotated[bool, typer.Option("--dropout", help="Keep the base's dropout while training.")] = False,
    accumulate: Annotated[int, typer.Option(help="Compute a batch in so many parts: less memory.")] = 1,
    most_tokens: Annotated[
        int | None, typer.Option(help="Compute a batch in parts of at most so many tokens: less memory.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="What steps are computed in: fp32 (default), or bf16 where that is quicker.")
    ] = None,
    trunk: Annotated[
        str, typer.Option(help="How states below the lowest trained layer are kept: fp32 (exact), fp16 or off.")
    ] = "fp32",
    device: options.Device = "auto",
    threads: options.Threads = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fewer layers and quicker steps: a little less score, if any.")
    ] = False,
    search: Annotated[
        int | None, typer.Option(min=1, help="First try so many settings (lr, size, epochs) on a part of the data.")
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="One set of adapters for several files, with a head each: NAME/FILE.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Of --joint: at 1 (default) each row once, the larger the more even.")
    ] = None,
    config: Config = None,
    resume: runs.Resume = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write the curves to this folder.")] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Turn a file of labelled text into a task."""
    from adaptree import api
    from adaptree.methods import Method, parse
    from adaptree.tasks.runs import run_folder
    from adaptree.tasks.store import Store
    from adaptree.training import distributed

    quiet = quiet or distributed.rank() > 0
    how: Method | str = method
    if size_ is not None or layers is not None:
        if method.strip().startswith("fuse("):
            raise UsageError("--size and --layers are of one method: what is fused has them.", hint="Leave them out.")
        how = parse(method)
        changes: dict[str, Any] = {} if layers is None else {"layers": layers}
        if size_ is not None:
            changes[how.main] = size_
        how = parse(how, **changes)
    where = Store(store)
    listeners = [] if tensorboard is None or distributed.rank() else [_tensorboard(tensorboard)]
    asked: dict[str, Any] = {
        "name": name, "base": base or "minilm", "method": how, "on": on, "kind": kind, "text": text,
        "text_pair": text_pair, "label": label, "encoding": encoding, "store": where, "resume": resume,
        "device": device, "threads": threads, "trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle,
        "epochs": epochs, "lr": lr, "batch_size": batch_size, "max_length": max_length, "max_steps": max_steps,
        "seed": seed, "metric": metric, "pooling": pooling, "patience": patience, "windows": windows,
        "whole_words": whole_words, "class_weights": class_weights, "dropout": dropout, "trunk": trunk,
        "accumulate": accumulate, "most_tokens": most_tokens, "precision": precision,
    }  # fmt: skip
    if joint:
        from adaptree.cli.joint import train_jointly

        refused = {"--validation": validation, "--test": test, "--fast": fast, "--search": search}
        heat = {} if temperature is None else {"temperature": temperature}
        return train_jointly(data, refused, Progress(quiet, listeners), form, quiet, **asked, **heat)
    if len(data) > 1 or temperature is not None:
        what = "the temperature is" if temperature is not None else f"{len(data)} files are"
        raise UsageError(f"{what} for training several tasks at once.", hint="Add --joint.")
    with runs.stoppable(run_folder(where, name)), Progress(quiet, listeners) as progress:
        bound = api.train(
            data[0], validation=validation, test=test, fast=fast, search=search, on_event=progress, **asked
        )
    distributed.dismiss()
    if distributed.rank():  # one of several processes, and not the one that speaks
        return 0
    task = bound.task
    if form is Format.table:
        report(api.result(task))
    else:
        emit_one(api.result(task), form)
    code = runs.tell_end([task.record], quiet)
    if not code and not quiet and form is Format.table:
        say(f'adaptree predict {name} "…"      adaptree show {name}')
    return code


def report(result: dict[str, Any]) -> None:
    """A trained task for people: scores beside the cheap baselines, and the price."""
    parts = list(result["metrics"])
    part = "test" if "test" in parts else parts[0]
    rows = []
    for key, (low, high) in result["intervals"][part].items():
        row: dict[str, Any] = {"metric": key}
        row |= {name: result["metrics"][name][key] for name in parts}
        row["interval"] = f"{low:.4f} - {high:.4f}"
        row |= {name: scores.get(key) for name, scores in result["baselines"].items()}
        rows.append(row)
    titles = {"metric": "", **{name: name for name in parts}, "interval": f"95 % of {part}"}
    emit(rows, Format.table, titles | {name: name for name in result["baselines"]})
    price = result["parameters"]
    share = 100 * price["trained"] / price["base_without_embeddings"]
    out().print(
        f"{result['task']}@{result['version']}: {result['method']} on {result['base']}; "
        f"{price['trained']:,} parameters trained (adapters {price['adapters']:,}, norms {price['norms']:,}, "
        f"head {price['head']:,}): {result['trained_percent']:.2f} % of the base, {share:.2f} % without embeddings; "
        f"{size(result['bytes'])}, {result['seconds']:.0f} s",
        soft_wrap=True,
    )


def _tensorboard(folder: Path) -> Any:
    """A listener that writes the curves for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed.", hint="pip install 'adaptree[tensorboard]'") from error
    writer = SummaryWriter(str(folder))

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            writer.add_scalar("train/loss", event["loss"], event["step"])
            writer.add_scalar("train/lr", event["lr"], event["step"])
        elif event["event"] == "epoch":
            for key in ("train_loss", "validation_loss", event["metric"]):
                writer.add_scalar(f"epoch/{key}", event[key], event["epoch"])
            writer.flush()

    return listen
