"""adaptree explain"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.predict import a_file, tell_cut
from adaptree.cli.show import Format, emit, emit_one, out, say
from adaptree.errors import UsageError


@app.command()
def explain(
    task: Annotated[str, typer.Argument(help="A fused task's name, or a composition with one: stack(lang/qu, fused).")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, the two of a pair separated by a tab; or a data file.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", help="The same, said by name.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Also draw it: attention.svg and attention.png in this folder.")
    ] = None,
    mask: Annotated[
        bool,
        typer.Option("--mask", help="Also score the labelled file without the most and the least attended adapter."),
    ] = False,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    base: options.BaseOption = None,
    encoding: options.Encoding = "utf-8",
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format, typer.Option("--format")] = Format.table,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """What a fused task attends to: the mean weight of each adapter in each layer, over the tokens of texts or a file.

    Padding does not count; special tokens such as [CLS] do.
    """
    from adaptree.analysis import explain as looking
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    if file is None and (named := a_file(texts)) is not None:
        file, texts = named, None
    if (file is None) == (not texts):
        raise UsageError("give either texts or a data file.", hint='adaptree explain TASK "some text"')
    if mask and file is None:
        raise UsageError("--mask scores a labelled file.", hint=f"adaptree explain {shlex.quote(task)} DATA --mask")
    if mask and form is Format.csv:
        raise UsageError("--mask is a second table, which csv has no room for.", hint="--format json")
    bound = open_task(
        Store(store), task, base=base, device=device, threads=threads, trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )  # fmt: skip
    looking.adapters_of(bound)
    given: Any
    if file is None:
        given = [bound.line(line) for line in texts or []]
    else:
        given = looking.inputs_of(bound, file, text=text, text_pair=text_pair, encoding=encoding)
    found = looking.attention(bound, given)
    drawn = looking.heatmap(found, folder) if folder is not None else []
    scores: list[dict[str, Any]] = []
    if mask and file is not None:
        columns = {"text": text, "text_pair": text_pair, "label": label}
        attended = {None: "", found.most: "most", found.least: "least"}
        for each in looking.masked(bound, file, [found.most, found.least], encoding=encoding, **columns):
            scores.append({"attended": attended[each.adapter], **asdict(each)})
    if form in (Format.json, Format.jsonl):
        emit_one({**found.to_dict(), **({"masked": scores} if mask else {})}, form)
    else:
        emit(found.rows(), form)
    if form is Format.table:
        plural = "s" if found.inputs > 1 else ""
        out().print(f"{found.inputs:,} input{plural}, {found.tokens:,} tokens", soft_wrap=True)
        if scores:
            shown = [{**row, "adapter": row["adapter"] or "nothing"} for row in scores]
            metric = scores[0]["metric"]
            emit(shown, form, {"adapter": "masked", "attended": "attended", "score": metric, "change": "change"})
    tell_cut(bound, quiet)
    if drawn:
        say("   ".join(map(str, drawn)), quiet)
