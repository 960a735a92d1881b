"""adaptree explain"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import a_file, note_truncated, split_options
from adaptree.cli.show import Format, emit, emit_one, out, say
from adaptree.errors import UsageError

if TYPE_CHECKING:
    from adaptree.analysis.attribution import Explanation

ATTENTION = "attention"


@app.command()
@options.takes(*options.COLUMNS, *options.COMPUTING, base=options.OF_TASK)
def explain(
    task: Annotated[str, shared.task_argument("A task's name, name@version, or a composition: stack(a, b).")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, the two of a pair separated by a tab; or a data file.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", help="A data file.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="gradients (the default) or leave-one-out score each word; attention, the default of fused tasks, "
            "shows the weight of each adapter.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The label, number or choice to explain. Default: what is predicted.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Also a page of the words: page.html. Of attention, attention.svg and .png in this folder."
        ),
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
    """Show which words a prediction rests on, or what a fused task attends to.

    A word's score is what it adds to the log-odds of a label, or to a number. Attention is the mean weight of each
    adapter in each layer, over the tokens of the inputs; padding does not count, special tokens such as [CLS] do.
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
    inputs: Any = (bound.line(line) for line in texts or [])
    if file is not None:
        inputs = (given for _, given in inputs_of(bound, file, **reading))
    by = by or analysis.default_way(bound)
    if by != ATTENTION:
        if mask:
            raise UsageError("--mask is for what a fused task attends to.", hint="--by attention, or leave out --mask.")
        _words(bound, inputs, by, target, folder, form, quiet)
        return
    if target is not None:
        raise UsageError("attention is over adapters, whatever the label.", hint="--by gradients, or no --target.")
    if folder is not None and folder.suffix.lower() == ".html":
        raise UsageError("attention is drawn into a folder.", hint=f"--out {shlex.quote(str(folder.with_suffix('')))}")
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


def _words(
    bound: Any, inputs: Iterable[Any], by: str, target: str | None, path: Path | None, form: Format, quiet: bool
) -> None:
    """Print the words of each input with their scores, and write them as a page."""
    from adaptree.analysis.attribution import check_way, explain_input
    from adaptree.reports import highlight

    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise UsageError("words are written as a page.", hint=f"--out {shlex.quote(str(path / 'words.html'))}")
    check_way(bound, by)
    kept: list[Explanation] = []
    nothing = 0

    def found() -> Iterator[tuple[int, Explanation]]:
        nonlocal nothing
        for number, given in enumerate(inputs):
            (read,) = bound.kind.inputs([given], bound.task.record)
            several = explain_input(bound, read, by=by, target=target)
            nothing += not several
            for each in several:
                if path is not None and len(kept) < highlight.MOST:
                    kept.append(each)
                yield number, each

    if form in (Format.json, Format.jsonl):
        emit(({"input": i, **each.to_dict()} for i, each in found()), form)
    elif form is Format.csv:
        emit(({"input": i, **row} for i, each in found() for row in each.rows()), form)
    else:
        console = out()
        for _, each in found():
            console.print(highlight.heading(each), soft_wrap=True, style="bold")
            console.print(highlight.coloured(each) if console.is_terminal else highlight.plain(each), soft_wrap=True)
            console.print()
    if nothing:
        say(f"note: in {nothing:,} inputs nothing was found to explain.", quiet)
    note_truncated(bound, quiet)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(highlight.page(kept), encoding="utf-8")
        say(str(path), quiet)
