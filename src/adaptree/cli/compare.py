"""adaptree compare"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, out, say, tell
from adaptree.errors import TrainingError, UsageError


@app.command()
def compare(
    data: Annotated[str, typer.Argument(help="csv, tsv, jsonl or parquet, also .gz or .xz.")],
    method: Annotated[list[str], typer.Option("--method", help="full, houlsby:64, …; give it several times.")],
    seeds: Annotated[int, typer.Option(min=1, help="How often each method is trained: seeds 0, 1, …")] = 3,
    folder: Annotated[
        Path, typer.Option("--out", help="Where everything is kept; done cells there are not run again.")
    ] = Path("comparison"),
    rows: Annotated[
        int | None,
        typer.Option(min=2, help="Train on at most this many rows, validate on half as many: a seeded sample."),
    ] = None,
    base: options.BaseOption = "minilm",
    validation: Annotated[str | None, typer.Option(help="Validation file. Default: a fifth of the data.")] = None,
    test: Annotated[str | None, typer.Option(help="Test file, opened when the settings are chosen.")] = None,
    epochs: Annotated[str | None, typer.Option(help="5, or several to try: 5,20. Default: by the rows.")] = None,
    lr: Annotated[str | None, typer.Option(help="1e-3, or several to try: 3e-4,1e-3. Default: the method's.")] = None,
    batch_size: Annotated[int, typer.Option()] = 32,
    max_length: Annotated[int | None, typer.Option(help="Longest text in tokens. Default: 256.")] = None,
    metric: Annotated[str | None, typer.Option(help="What is compared. Default: accuracy or pearson.")] = None,
    title: Annotated[
        str | None, typer.Option(help="Over the table and the figure. Default: the file and the base.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="classify or regress. Default: guessed from the labels.")] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    encoding: options.Encoding = "utf-8",
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run the cells that failed once more.")] = False,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    store: options.NoStore = None,
    debug: options.Debug = False,
) -> int:
    """Compare methods on your data: score against trained parameters, as a table and a figure."""
    from adaptree.analysis.compare import compare as run
    from adaptree.analysis.compare import report

    try:
        result = run(
            data, methods=method, out=folder, seeds=seeds, rows=rows, base=base or "minilm", validation=validation,
            test=test, epochs=_numbers("epochs", epochs, int), lr=_numbers("lr", lr, float), batch_size=batch_size,
            max_length=max_length, metric=metric, kind=kind, text=text, text_pair=text_pair, label=label,
            encoding=encoding, device=device, threads=threads, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, retry=retry, title=title, command=_command(),
            on_event=lambda event: tell(event, quiet),
        )  # fmt: skip
    except KeyboardInterrupt:
        raise TrainingError(
            f"stopped; the cells that are done are kept in '{folder}'.", hint="The same command goes on."
        ) from None
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
    """A method's row with a column for each number; a failed one leaves them empty."""
    found: dict[str, Any] = {"method": row["method"]}
    for part in ("validation", "test"):
        scores = row.get("scores", {}).get(part, {})
        found |= {part: scores.get("mean"), f"{part}_spread": scores.get("spread")}
    keys = ("trained", "trained_percent", "bytes", "seconds", "memory", "peak_memory", "base_memory", "seeds", "pareto")
    found |= {key: row.get(key) for key in keys}
    return found | {"error": row["failed"][0]["error"] if row["failed"] else ""}


def _command() -> str:
    return shlex.join(["adaptree", *sys.argv[1:]])
