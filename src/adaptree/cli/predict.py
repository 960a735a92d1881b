"""adaptree predict"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, say
from adaptree.errors import DataError, UsageError


@app.command()
@options.takes("text", "text_pair", "encoding", *options.COMPUTING, base=options.OF_TASK)
def predict(
    task: Annotated[str, typer.Argument(help="A task's name, name@version, or a composition: stack(a, b).")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; - reads them from stdin, one a line.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="A data file: its columns are kept, those of the prediction added.")
    ] = None,
    min_score: Annotated[float | None, typer.Option(min=0, max=1, help="Abstain below this probability.")] = None,
    int8: shared.Int8 = False,
    store: shared.StoreOption = None,
    form: Annotated[Format | None, typer.Option("--format", help="Default: a table, or csv with --file.")] = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Predict for texts, in their order. The two texts of a pair are separated by a tab.

    parallel(a, b) predicts with every part. rows(a, b) needs the name of a part and a tab before each text, or a column
    'task' in the file.
    """
    from adaptree import api
    from adaptree.data.read import names
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    if (file is None) == (not texts):
        raise UsageError("give either texts or --file.", hint='adaptree predict TASK "some text"')
    if (path := a_file(texts)) is not None:
        raise UsageError(
            f"'{path}' is a file.", hint=f"adaptree predict {shlex.quote(task)} --file {shlex.quote(path)}"
        )
    reading, opening = split_options(values)
    bound = open_task(Store(store), task, int8=int8, **opening)
    if file is not None:
        predictions = api.predict_rows(bound, file, min_score=min_score, **reading)
        form = form or Format.csv
        if form in (Format.json, Format.jsonl):
            emit((prediction.to_dict() for _, prediction in predictions), form)
        else:
            columns = names(file, encoding=reading.get("encoding", "utf-8"))
            emit((_beside(row, prediction, columns) for row, prediction in predictions), form)
        note_truncated(bound, quiet)
        return
    form = form or Format.table
    lines = _stdin(reading.get("encoding", "utf-8")) if texts == ["-"] else iter(texts or [])
    pairs = api.predict_lines(bound, lines, min_score=min_score)
    if form in (Format.json, Format.jsonl):
        emit((prediction.to_dict() for _, prediction in pairs), form)
    else:
        emit(({**prediction.columns(), "text": line} for line, prediction in pairs), form)
    note_truncated(bound, quiet)


def split_options(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that say how a file is read, and those that say how a task is opened."""
    wanted = options.given(values)
    reading = {name: wanted.pop(name) for name in options.COLUMNS if name in wanted}
    return reading, wanted


def a_file(texts: list[str] | None) -> str | None:
    """Return the data file that was given in the place of texts, if one was."""
    from adaptree.data.read import FORMATS, UNPACK

    if texts is None or len(texts) != 1 or "\n" in texts[0]:
        return None
    try:
        path = Path(texts[0])
        return texts[0] if path.suffix.lower() in (*FORMATS, *UNPACK) and path.is_file() else None
    except (OSError, ValueError):  # too long a name for a file, for one
        return None


def note_truncated(bound: Any, quiet: bool) -> None:
    """Print a note if texts were longer than a task takes."""
    for name, part in getattr(bound, "parts", {"": bound}).items():
        if part.truncated:
            most = f"{part.task.record.max_length} tokens{f' of {name}' if name else ''}"
            say(f"note: {part.truncated:,} texts are longer than {most} and were truncated.", quiet)


def _stdin(encoding: str) -> Iterator[str]:
    try:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding=encoding, errors="strict")
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except (UnicodeError, LookupError) as error:
        raise DataError(f"stdin cannot be read: {error}.", hint="Choose its encoding: --encoding latin-1") from error


def _beside(row: dict[str, Any], prediction: Any, names: list[str]) -> dict[str, Any]:
    """Return the row with the prediction's columns, renamed where the file has such a column already."""
    whole = {name: row.get(name) for name in names}
    for key, value in prediction.columns().items():
        while key in whole:
            key = f"predicted_{key}"
        whole[key] = value
    return whole
