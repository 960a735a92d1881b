"""adaptree predict"""

from __future__ import annotations

import codecs
import io
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, emit, emit_live, piece, say
from adaptree.errors import DataError, UsageError
from adaptree.reports.text import visible, width

WAITING = 1 << 16
"""The most bytes of stdin that are read at once: what a pipe holds."""
MOST_WIDE = 40
"""The width up to which a table that is printed line by line makes room for a task's longest label."""


@app.command()
@options.decodes
@options.takes("text", "text_pair", "encoding", "no_header", *options.COMPUTING, base=options.OF_TASK)
def predict(
    task: Annotated[
        str | None,
        shared.task_argument("A task's name, name@version, or a composition: stack(a, b). None with --labels."),
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; - reads stdin, and answers each line as it comes.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="A data file: its columns are kept, those of the prediction added.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help='No task: rank these labels by the base alone. "a, b, c", or a file of name: description.'),
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
    from adaptree.data.cells import is_empty
    from adaptree.data.read import names
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store
    from adaptree.training.predict import columns_of

    if labels is not None and task is not None:  # all words are texts
        texts = [task, *(texts or [])]
    elif labels is None and task is None:
        raise UsageError("name a task, or labels to choose from.", hint='adaptree predict TASK "some text"')
    hint = f'adaptree predict {"TASK" if labels is None else "--labels …"} "some text"'
    if (file is None) == (not texts):
        raise UsageError("give either texts or --file.", hint=hint)
    if (path := a_file(texts)) is not None:
        raise UsageError(
            f"'{path}' is a file.", hint=f"adaptree predict {shlex.quote(task or 'TASK')} --file {shlex.quote(path)}"
        )
    if texts and texts != ["-"] and all(map(is_empty, texts)):
        raise UsageError("the text is empty: there is nothing to predict from.", hint=hint)
    decoding = options.decoding(values)
    reading, opening = split_options(values)
    if labels is None:
        bound = open_task(Store(store), str(task), int8=int8, **opening)
        use_decoding(bound, decoding)
    else:
        bound = _zero_shot(labels, int8, opening)
    if file is not None:
        predictions = api.predict_rows(bound, file, min_score=min_score, on_event=Progress(quiet), **reading)
        how = {name: reading[name] for name in ("encoding", "no_header") if name in reading}
        columns = names(file, columns=columns_of(bound, reading.get("text"), reading.get("text_pair")), **how)
        emit(_beside(predictions, columns, form or Format.csv, quiet), form or Format.csv)
    elif texts == ["-"]:
        if sys.stdin.isatty():
            say("type a text and press Enter; Ctrl-D ends.", quiet)
        pairs = _as_they_come(bound, _stdin(reading.get("encoding", "utf-8")), min_score)
        emit_live(_answers(pairs, form), form or Format.table, _widths(bound))
    elif texts and form is None and min_score is None and _can_follow(bound, texts):
        bound.write(bound.kind.inputs([bound.line(texts[0])], bound.task.record), on_text=piece)
        piece("\n")
    else:
        pairs = api.predict_lines(bound, texts or [], min_score=min_score)
        emit(_answers(pairs, form), form or Format.table)
    note_int8(bound, quiet)
    note_truncated(bound, quiet)
    note_blank(bound, quiet)
    note_unfinished(bound, quiet)


def _can_follow(bound: Any, texts: list[str]) -> bool:
    """Return whether what a task writes can be shown piece by piece: one text, on a terminal."""
    one = len(texts) == 1 and sys.stdout.isatty() and not hasattr(bound, "parts")
    writes = getattr(getattr(bound, "kind", None), "generates", False)
    return one and writes and not bound.decoding.get("choices")


def _zero_shot(labels: str, int8: bool, opening: Mapping[str, Any]) -> Any:
    """Return the base with labels to choose from."""
    from adaptree.models.opening import base_of
    from adaptree.models.zero_shot import ZeroShot, read_labels
    from adaptree.training.run import Run

    if int8:
        raise UsageError("--int8 is for tasks: it is compared with their predictions.", hint="Leave it out.")
    found = read_labels(labels)
    how = {"base": Run.base, "device": Run.device, "threads": Run.threads} | dict(opening)
    return ZeroShot(base_of(how.pop("base"), how.pop("device"), how.pop("threads"), **how), found)


def use_decoding(bound: Any, decoding: Mapping[str, Any]) -> None:
    """Let a task choose its texts as asked; raise UsageError if it writes none, or it cannot be asked so."""
    from adaptree.data.decoding import Decoding

    if not decoding:
        return
    Decoding(**decoding)
    if not any(part.kind.generates for part in getattr(bound, "parts", {"": bound}).values()):
        flag = next(iter(decoding)).replace("_", "-").replace("choices", "choice")
        raise UsageError(f"--{flag} is for tasks that write texts.", hint="Leave it out.")
    bound.decoding = dict(decoding)


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
            why = "it was trained with that --max-length"
            end = f" at the {part.kind.cut}" if hasattr(part.kind, "cut") else ""
            say(f"note: {part.truncated:,} texts are longer than {most} and were truncated{end}: {why}.", quiet)


def note_blank(bound: Any, quiet: bool) -> None:
    """Print a note if texts were empty, and so have no prediction."""
    for name, part in getattr(bound, "parts", {"": bound}).items():
        if part.blank:
            have = "1 text is empty and has" if part.blank == 1 else f"{part.blank:,} texts are empty and have"
            say(f"note: {have} no prediction{f' of {name}' if name else ''}.", quiet)


def note_unfinished(bound: Any, quiet: bool) -> None:
    """Print a note if texts that a task wrote were cut off before they ended, or before a text to stop at came."""
    for name, part in getattr(bound, "parts", {"": bound}).items():
        if count := getattr(part, "unfinished", 0):
            were = "1 text was" if count == 1 else f"{count:,} texts were"
            stop = ", without the text to stop at" if part.decoding.get("stop") else ""
            say(f"note: {were} cut off before the end{stop}{f' ({name})' if name else ''}: --max-new-tokens", quiet)


def note_int8(bound: Any, quiet: bool) -> None:
    """Print a note if predictions were computed in int8: how many were compared with fp32, and how many differ."""
    for name, part in getattr(bound, "parts", {"": bound}).items():
        if part.int8:
            compared, changed = part.int8_compared
            whose = f" of {name}" if name else ""
            say(f"note: in int8, {changed:,} of the first {compared:,} predictions{whose} differ from fp32.", quiet)


def _answers(pairs: Iterable[tuple[str, Any]], form: Format | None) -> Iterator[dict[str, Any]]:
    """Yield what is printed for each text: the prediction for a program, or its columns beside the text."""
    for text, prediction in pairs:
        if form in (Format.json, Format.jsonl):
            yield prediction.to_dict()
        else:
            yield {**prediction.columns(), "text": text}


def _as_they_come(bound: Any, batches: Iterable[list[str]], min_score: float | None) -> Iterator[tuple[str, Any]]:
    """Yield each line with its prediction; what was printed of a batch is flushed before the next is waited for."""
    from adaptree import api

    for waiting in batches:
        yield from api.predict_lines(bound, waiting, min_score=min_score)
        sys.stdout.flush()


def _stdin(encoding: str) -> Iterator[list[str]]:
    """Yield the lines of stdin, at each time those that are waiting there: one that is typed, many of a file."""
    try:
        name = codecs.lookup(encoding).name
        decoder = codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else name)()
        translated = io.IncrementalNewlineDecoder(decoder, translate=True)
        stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode(name))
        begun: list[str] = []  # a line that has not ended yet
        while data := stream.read1(WAITING):
            first, *others = translated.decode(data).split("\n")
            begun.append(first)
            if others:
                yield ["".join(begun), *others[:-1]]
                begun = others[-1:]
        if rest := "".join(begun) + translated.decode(b"", final=True):
            yield [rest.removesuffix("\n")]
    except (UnicodeError, LookupError) as error:
        raise DataError(f"stdin cannot be read: {error}.", hint="Choose its encoding: --encoding latin-1") from error


def _widths(bound: Any) -> dict[str, int]:
    """Return how much room the columns of a task's predictions need, as far as its labels tell."""
    parts = getattr(bound, "parts", {"": bound})
    widths: dict[str, int] = {}
    for name, part in parts.items():
        labels = getattr(getattr(part, "kind", part), "labels", ())
        longest = max((width(visible(label)) for label in labels), default=0)
        before = f"{name}." if name else ""
        widths |= {f"{before}prediction": min(longest, MOST_WIDE), f"{before}score": len("0.1234")}
    return widths


def _beside(
    predictions: Iterable[tuple[dict[str, Any], Any]], names: list[str], form: Format, quiet: bool
) -> Iterator[dict[str, Any]]:
    """Yield each row with its prediction, whose columns are renamed where the file has such a column already.

    A row of csv or of a table has all columns of the file, one of JSON those that it has in the file.
    """
    from adaptree.models.several import RowPrediction

    nested, noted = form in (Format.json, Format.jsonl), quiet
    for row, prediction in predictions:
        whole = dict(row) if nested else {name: row.get(name) for name in names}
        one = prediction.prediction if isinstance(prediction, RowPrediction) else prediction  # the file names the task
        found = one.to_dict() if nested else prediction.columns()
        called = {key: _unused(key, names) for key in found}
        if not noted and (taken := [key for key in found if key != called[key]]):
            noted = True
            new = ", ".join(f"'{called[key]}'" for key in taken)
            say(f"note: the file has its own {', '.join(map(repr, taken))}: those of the prediction are {new}.")
        yield whole | {called[key]: value for key, value in found.items()}


def _unused(key: str, names: list[str]) -> str:
    """Return a prediction's column, with predicted_ before it as often as it takes to be none of the file's."""
    return key if key not in names else _unused(f"predicted_{key}", names)
