"""adaptree explain"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import a_file, note_truncated, split_options
from adaptree.cli.show import Format, emit, emit_one, out, say
from adaptree.errors import UsageError


@app.command()
@options.takes(*options.COLUMNS, *options.COMPUTING, base=options.OF_TASK)
def explain(
    task: Annotated[str, typer.Argument(help="A fused task's name, or a composition with one: stack(lang/qu, fused).")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, the two of a pair separated by a tab; or a data file.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", help="A data file.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Also draw it: attention.svg and attention.png in this folder.")
    ] = None,
    mask: Annotated[
        bool,
        typer.Option("--mask", help="Also score the labelled file without the most and the least attended adapter."),
    ] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Show what a fused task attends to: the mean weight of each adapter in each layer, over the tokens of the inputs.

    Padding does not count; special tokens such as [CLS] do.
    """
    from adaptree.analysis import explain as analysis
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store
    from adaptree.training.predict import inputs_of

    if file is None and (path := a_file(texts)) is not None:
        file, texts = path, None
    if (file is None) == (not texts):
        raise UsageError("give either texts or a data file.", hint='adaptree explain TASK "some text"')
    if mask and file is None:
        raise UsageError("--mask scores a labelled file.", hint=f"adaptree explain {shlex.quote(task)} DATA --mask")
    if mask and form is Format.csv:
        raise UsageError("--mask is a second table, which csv has no room for.", hint="--format json")
    reading, opening = split_options(values)
    label = reading.pop("label", None)
    bound = open_task(Store(store), task, **opening)
    analysis.adapters_of(bound)
    inputs: Any = [bound.line(line) for line in texts or []]
    if file is not None:
        inputs = (given for _, given in inputs_of(bound, file, **reading))
    attention = analysis.attention(bound, inputs)
    figures = analysis.heatmap(attention, folder) if folder is not None else []
    scores: list[dict[str, Any]] = []
    if mask and file is not None:
        attended = {None: "", attention.most: "most", attention.least: "least"}
        for each in analysis.masked(bound, file, [attention.most, attention.least], label=label, **reading):
            scores.append({"attended": attended[each.adapter], **asdict(each)})
    if form in (Format.json, Format.jsonl):
        emit_one({**attention.to_dict(), **({"masked": scores} if mask else {})}, form)
    else:
        emit(attention.rows(), form)
    if form is Format.table:
        plural = "s" if attention.inputs > 1 else ""
        out().print(f"{attention.inputs:,} input{plural}, {attention.tokens:,} tokens", soft_wrap=True)
        if scores:
            rows = [{**row, "adapter": row["adapter"] or "nothing"} for row in scores]
            metric = scores[0]["metric"]
            emit(rows, form, {"adapter": "masked", "attended": "attended", "score": metric, "change": "change"})
    note_truncated(bound, quiet)
    if figures:
        say("   ".join(map(str, figures)), quiet)
