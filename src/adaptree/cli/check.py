"""adaptree check"""

from __future__ import annotations

from typing import Annotated

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit_one, out


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="csv, tsv, jsonl or parquet, also .gz or .xz.")],
    validation: Annotated[str | None, typer.Option(help="Validation file, looked at for leakage.")] = None,
    base: options.BaseOption = "minilm",
    kind: Annotated[str | None, typer.Option(help="classify or regress. Default: guessed from the labels.")] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    encoding: options.Encoding = "utf-8",
    max_length: Annotated[int | None, typer.Option(help="Longest text in tokens. Default: 256.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    debug: options.Debug = False,
) -> None:
    """What is in this file, what `train` would do with it, and what looks wrong."""
    from adaptree import api

    report = api.check(
        data, validation=validation, base=base or "minilm", kind=kind, text=text, text_pair=text_pair, label=label,
        encoding=encoding, max_length=max_length, seed=seed,
    )  # fmt: skip
    if form is Format.table:
        out().print("\n".join(report.lines()))
    else:
        emit_one(report.to_dict(), form)
