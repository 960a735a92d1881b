"""adaptree predict"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, say
from adaptree.errors import DataError, UsageError


@app.command()
def predict(
    task: Annotated[str, typer.Argument(help="A task's name, name@version, or a composition: stack(a, b).")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; - reads them from stdin, one a line.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="A data file: its columns are kept, the answer's added.")
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    min_score: Annotated[float | None, typer.Option(min=0, max=1, help="Abstain below this probability.")] = None,
    base: options.BaseOption = None,
    encoding: options.Encoding = "utf-8",
    int8: options.Int8 = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    store: options.StoreOption = None,
    form: Annotated[Format | None, typer.Option("--format", help="Default: a table, or csv with --file.")] = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Answer texts, one after the other, in their order. The two texts of a pair are separated by a tab.

    parallel(a, b) answers each with every part. rows(a, b) wants the name of a part and a tab before each text, or a
    column 'task' in the file.
    """
    from adaptree import api
    from adaptree.data.read import names
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    if (file is None) == (not texts):
        raise UsageError("give either texts or --file.", hint='adaptree predict TASK "some text"')
    if (named := a_file(texts)) is not None:
        raise UsageError(
            f"'{named}' is a file.", hint=f"adaptree predict {shlex.quote(task)} --file {shlex.quote(named)}"
        )
    bound = open_task(
        Store(store), task, base=base, device=device, threads=threads, trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle, int8=int8,
    )  # fmt: skip
    if file is not None:
        answers = api.predict_rows(bound, file, encoding=encoding, min_score=min_score, text=text, text_pair=text_pair)
        form = form or Format.csv
        if form in (Format.json, Format.jsonl):
            emit((answer.to_dict() for _, answer in answers), form)
        else:
            known = names(file, encoding=encoding)
            emit((_beside(row, answer, known) for row, answer in answers), form)
        tell_cut(bound, quiet)
        return
    form = form or Format.table
    lines = _stdin(encoding) if texts == ["-"] else iter(texts or [])
    pairs = api.predict_lines(bound, lines, min_score=min_score)
    if form in (Format.json, Format.jsonl):
        emit((answer.to_dict() for _, answer in pairs), form)
    else:
        emit(({**answer.columns(), "text": line} for line, answer in pairs), form)
    tell_cut(bound, quiet)


def a_file(texts: list[str] | None) -> str | None:
    """The data file that stands alone where texts would, if one does."""
    from adaptree.data.read import FORMATS, UNPACK

    if texts is None or len(texts) != 1 or "\n" in texts[0]:
        return None
    try:
        path = Path(texts[0])
        return texts[0] if path.suffix.lower() in (*FORMATS, *UNPACK) and path.is_file() else None
    except (OSError, ValueError):  # too long a name for a file, for one
        return None


def tell_cut(bound: Any, quiet: bool) -> None:
    """Say it when texts were longer than a task takes."""
    several = getattr(bound, "parts", {})
    for name, part in several.items() or [("", bound)]:
        if part.truncated:
            most = f"{part.task.record.max_length} tokens{f' of {name}' if name else ''}"
            say(f"note: {part.truncated:,} texts are longer than {most} and were cut.", quiet)


def _stdin(encoding: str) -> Iterator[str]:
    try:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding=encoding, errors="strict")
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except (UnicodeError, LookupError) as error:
        raise DataError(f"stdin cannot be read: {error}.", hint="Choose how: --encoding latin-1") from error


def _beside(row: dict[str, Any], answer: Any, names: list[str]) -> dict[str, Any]:
    """The row with the answer's columns; where the file has a column of that name, the answer's gets another."""
    whole = {name: row.get(name) for name in names}
    for key, value in answer.columns().items():
        while key in whole:
            key = f"predicted_{key}"
        whole[key] = value
    return whole
