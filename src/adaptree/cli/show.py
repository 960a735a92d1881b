"""How results and progress are shown: tables for people, plain formats for programs.

All that people read is printed here, and here its texts are made harmless: a label, a file's name or an error may hold
escape sequences, and a terminal must not obey them (`visible`). Programs get the true values.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from adaptree.data.events import Event, Listener
from adaptree.reports.json_text import json_text
from adaptree.reports.text import visible, width
from adaptree.reports.times import about, duration

TARGETS = ("label", "labels", "numbers", "answers")
"""Parts of a file's columns that are predicted; the rest is read."""
BESIDE = ("separator", "id", "start", "impossible")
"""Parts that a line about a run leaves out."""
PIPE_WIDTH = 160
"""Columns of text that a table in a pipe may take."""
BETWEEN = 3
"""Blanks between two columns of a table."""
NUMBER = re.compile(r"[-+]?[\d,.]+( ?(B|KB|MB|GB|%|s))?|-?")
"""A cell of a table that reads as a number."""


class Format(StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def emit(rows: Iterable[Mapping[str, Any]], form: Format, columns: Mapping[str, str] | None = None) -> None:
    """Print rows in a format; `columns` are those of a table, with their titles."""
    if form is Format.json:
        print(json_text(list(rows), default=str))
    elif form is Format.jsonl:
        for row in rows:
            print(json_text(row, default=str))
    elif form is Format.csv:
        write_csv(rows)
    else:
        _table(list(rows), columns)


def emit_live(rows: Iterable[Mapping[str, Any]], form: Format, least: Mapping[str, int]) -> None:
    """Print each row as soon as it comes; a table's columns are as wide as in `least`, or as the widest cell so far."""
    if form is not Format.table:
        emit(rows, form)
        return
    widths: dict[str, int] = {}
    for row in rows:
        if not widths:
            widths = {key: max(width(visible(key)), least.get(key, 0)) for key in row}
            print(_line({key: visible(key) for key in row}, widths))
        cells = {key: visible(_cell(value, 4)) for key, value in row.items()}
        widths |= {key: max(widths.get(key, 0), width(text)) for key, text in cells.items()}
        print(_line(cells, widths))


def _line(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return the cells of one row side by side."""
    return "  ".join(text + " " * (widths[key] - width(text)) for key, text in cells.items()).rstrip()


def emit_one(row: Mapping[str, Any], form: Format) -> None:
    """Print one object; as csv, the keys of nested values are joined with dots."""
    if form is Format.csv:
        write_csv([dict(_flat(row))])
    else:
        print(json_text(row, indent=None if form is Format.jsonl else 1, default=str))


def write_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of the same columns as csv; values that are neither text nor number are written as JSON.

    A pipe or a file gets the texts as they are; a terminal does not get their control characters.
    """
    writer, seen = csv.writer(sys.stdout, lineterminator="\n"), sys.stdout.isatty()
    columns: list[str] | None = None
    for row in rows:
        if columns is None:
            columns = list(row)
            writer.writerow([visible(key) if seen else key for key in columns])
        cells = [row[key] for key in columns]
        cells = [
            json_text(cell, default=str) if isinstance(cell, bool | Mapping | list | tuple) else cell for cell in cells
        ]
        writer.writerow([visible(cell) if seen and isinstance(cell, str) else cell for cell in cells])


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(rows: list[Mapping[str, Any]], columns: Mapping[str, str] | None) -> None:
    if not rows:
        return
    titles = columns or {key: key for key in rows[0]}
    shown = [column([row.get(key) for row in rows]) for key in titles]
    numeric = [all(NUMBER.fullmatch(cell) for cell in cells) for cells in shown]
    if not sys.stdout.isatty() and _print_plain(list(titles.values()), shown, numeric):
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title, right in zip(titles.values(), numeric, strict=True):
        table.add_column(title, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for line in zip(*shown, strict=True):
        table.add_row(*line)
    out().print(table)


def fitting(
    rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], least: Sequence[str], room: int | None = None,
    **wrapped: int,
) -> dict[str, str]:  # fmt: skip
    """Return the columns that fit side by side in `room`, by default the terminal's: without some of `least`, in order.

    `wrapped` columns may be as narrow as that; without a terminal, all columns are returned.
    """
    found = dict(titles)
    if room is None:
        if not sys.stdout.isatty():
            return found
        room = int(out().width)
    widths = {key: max(map(width, (title, *column([row.get(key) for row in rows])))) for key, title in titles.items()}
    widths |= {key: min(widths[key], narrow) for key, narrow in wrapped.items()}
    for key in least:
        if sum(widths[each] + BETWEEN for each in found) > room:
            del found[key]
    return found


def _print_plain(titles: Sequence[str], columns: Sequence[Sequence[str]], right: Sequence[bool]) -> bool:
    """Print a table as rich does, in a tenth of its time; return False if it is too wide to be printed so."""
    texts = [[visible(text) for text in (title, *cells)] for title, cells in zip(titles, columns, strict=True)]
    widths = [max(map(width, column)) for column in texts]
    total = sum(widths) + 3 * len(widths) - 3
    if total + 2 > PIPE_WIDTH:
        return False
    padded = [
        [" " * (wide - width(text)) + text if numeric else text + " " * (wide - width(text)) for text in column]
        for column, wide, numeric in zip(texts, widths, right, strict=True)
    ]
    head, *lines = (f" {'   '.join(line)} " for line in zip(*padded, strict=True))
    print("\n".join([" " * (total + 2), head, f" {'─' * total} ", *lines, " " * (total + 2)]))
    return True


def column(values: Sequence[Any]) -> list[str]:
    """Return the values of a column as a table shows them, its numbers with the same decimals."""
    digits = 4 if any(isinstance(value, float) and abs(value) < 10 for value in values) else 1
    return [_cell(value, digits) for value in values]


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def out(stderr: bool = False) -> Any:
    """Return a console that prints texts harmlessly, and neither wraps nor colours what goes into a pipe.

    A text that it prints, or a cell of a table, is one line.
    """
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else PIPE_WIDTH
    return _console_type()(file=stream, width=wide, highlight=False, markup=False, emoji=False)


@cache
def _console_type() -> Any:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class HarmlessConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            """Return the text of a string that is printed, or of a cell of a table, before it is measured."""
            return super().render_str(visible(text), **options)

        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            """Yield the pieces of anything that is printed, such as a text with styles of its own."""
            for piece in super().render(*args, **options):
                yield piece if piece.control else piece._replace(text=visible_lines(piece.text))

    return HarmlessConsole


def visible_lines(text: str) -> str:
    """Return a text of several lines with its control characters spelled out."""
    return "\n".join(map(visible, text.split("\n")))


def page(markdown: str) -> None:
    """Print a page of Markdown: laid out on a terminal, as it is in a pipe."""
    text = visible_lines(markdown.rstrip("\n"))
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.markdown import Markdown

    out().print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


def piece(text: str) -> None:
    """Print a part of a text that goes on, as it is written."""
    print(visible_lines(text), end="", flush=True)


def say(text: str, quiet: bool = False) -> None:
    """Print a line on stderr."""
    if not quiet:
        print(visible(text), file=sys.stderr, flush=True)


def count(text: str, done: bool) -> None:
    """Print a line on stderr over the one that `count` printed last, until it is done; for terminals."""
    print(f"\r{visible(text)}", end="\n" if done else "", file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 epoch, 2 epochs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Progress:
    """A listener that shows a run: a progress bar on a terminal, lines in a pipe, nothing if quiet."""

    def __init__(self, quiet: bool = False, also: Sequence[Listener] = ()) -> None:
        self.quiet = quiet
        self.also = also
        self._bar: Any = None
        self._task: Any = None
        self._score = ""
        self._notes: set[str] = set()

    def __call__(self, event: Event) -> None:
        for listener in self.also:
            listener(event)
        if self.quiet:
            return
        handler = getattr(self, f"_{event['event']}", None)
        if handler is not None:
            handler(event)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *args: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _reading(self, event: Event) -> None:
        """Show one line that counts on a terminal; in a pipe, a line when a long file has been read."""
        text = f"{event['name']}: {event['rows']:,} rows read"
        if sys.stderr.isatty():
            count(text, event["done"])
        elif event["done"]:
            self._line(text)

    def _note(self, event: Event) -> None:
        if event.get("warning"):
            self._line(f"warning: {event['text']}")
        elif event["text"] not in self._notes:  # a run that goes on with all rows would repeat what it said
            self._notes.add(event["text"])
            self._line(f"note: {event['text']}")

    def _trial(self, event: Event) -> None:
        found = "the loss is not a number" if event["score"] is None else f"{event['metric']} {event['score']:.4f}"
        epochs = counted(len(event["course"]) if event["stopped"] else event["epochs"], "epoch")
        ended = f"stopped after {epochs}" if event["stopped"] else epochs
        self._line(
            f"trial {event['number'] + 1}/{event['trials']}  {event['method']}, lr {event['lr']:.2g}, {ended}: "
            f"{found}  {event['seconds']:.0f} s"
        )

    def _start(self, event: Event) -> None:
        settings = event["settings"]
        columns = {part: column for part, column in event["columns"].items() if column and part not in BESIDE}
        target = next((columns.pop(part) for part in TARGETS if part in columns), None)
        texts = " + ".join(map(str, columns.values()))
        kinds = {"regress": " (a number)"} | dict.fromkeys(("classify", "tag"), f" ({len(event['labels'])} labels)")
        label = f" → '{target}'" if target else ""
        self._line(
            f"{event['name']}: {event['kind']}{kinds.get(event['kind'], '')} from '{texts}'{label}; "
            f"{event['train']:,} rows to train on, {event['validation']:,} to validate"
        )
        how = f"{counted(settings['epochs'], 'epoch')}, batch {settings['batch_size']}"
        if settings.get("objective") == "contrastive":
            how = "contrastive"
        self._line(f"{event['method']} on {event['base']}, {how}, lr {settings['lr']:g}, seed {settings['seed']}")
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=out(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("epoch 1", total=event["train"] * settings["epochs"], state="")

    def _step(self, event: Event) -> None:
        if self._bar is not None:
            state = f"loss {event['loss']:.3f}  {self._score}{event['tokens_per_second']:,.0f} tokens/s"
            description = f"epoch {event['epoch']}/{event['epochs']}"
            self._bar.update(
                self._task, completed=event["seen"], total=event["total"], description=description, state=state
            )

    def _estimate(self, event: Event) -> None:
        sooner = ", or less with early stopping" if event["epochs"] > 1 else ""
        self._line(
            f"about {about(event['seconds'])}{sooner}: {event['rows']:,} rows, "
            f"{counted(event['epochs'], 'epoch')}, some {event['steps']:,} steps and {event['tokens']:,} tokens"
        )

    def _epoch(self, event: Event) -> None:
        self._score = f"{event['metric']} {event[event['metric']]:.3f}  "
        best = "  ← best so far" if event["best"] == event["epoch"] else ""
        left = event.get("left") if self._bar is None else None  # the bar shows it
        rest = f"  about {about(left)} left" if left and left >= 1 else ""
        self._line(
            f"epoch {event['epoch']:>2}/{event['epochs']}  loss {event['train_loss']:.4f}  "
            f"{event['metric']} {event[event['metric']]:.4f}  {duration(event['seconds'])}{rest}{best}"
        )

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            say(text)


def comparison_progress(event: Event, quiet: bool) -> None:
    """Print the notes of a comparison, and a line for each cell that begins."""
    if event["event"] == "note":
        say(f"{'warning' if event.get('warning') else 'note'}: {event['text']}", quiet)
    elif event["event"] == "cell":
        tried = "".join(f", {key} {event[key]:g}" for key in ("lr", "epochs") if event[key] is not None)
        left = "" if event["left"] is None else f"   about {duration(event['left'])} left"
        say(f"{event['number']}/{event['cells']}  {event['method']}{tried}, seed {event['seed']}{left}", quiet)
