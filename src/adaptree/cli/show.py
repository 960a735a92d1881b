"""How results and progress are shown: tables for people, plain formats for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from adaptree.data.events import Event, Listener

TARGETS = ("label", "labels", "numbers", "answers")
"""Parts of a file's columns that are predicted; the rest is read."""
BESIDE = ("separator", "id", "start", "impossible")
"""Parts that a line about a run leaves out."""


class Format(StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def emit(rows: Iterable[Mapping[str, Any]], form: Format, columns: Mapping[str, str] | None = None) -> None:
    """Print rows in a format; `columns` are those of a table, with their titles."""
    if form is Format.json:
        print(json.dumps(list(rows), ensure_ascii=False))
    elif form is Format.jsonl:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif form is Format.csv:
        write_csv(rows)
    else:
        _table(list(rows), columns)


def emit_one(row: Mapping[str, Any], form: Format) -> None:
    """Print one object; as csv, the keys of nested values are joined with dots."""
    if form is Format.csv:
        write_csv([dict(_flat(row))])
    else:
        print(json.dumps(row, ensure_ascii=False, indent=None if form is Format.jsonl else 1))


def write_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of the same columns as csv; values that are neither text nor number are written as JSON."""
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        nested = {key: value for key, value in row.items() if isinstance(value, bool | Mapping | list | tuple)}
        encoded = {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in nested.items()}
        writer.writerow({**row, **encoded})


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(rows: list[Mapping[str, Any]], columns: Mapping[str, str] | None) -> None:
    from rich import box
    from rich.table import Table

    if not rows:
        return
    titles = columns or {key: key for key in rows[0]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for key, title in titles.items():
        numeric = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in rows:
        table.add_row(*(cell(row.get(key)) for key in titles))
    out().print(table)


def out(stderr: bool = False) -> Any:
    """Return a console that neither wraps nor colours what goes into a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 160, highlight=False, markup=False, emoji=False)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def say(text: str, quiet: bool = False) -> None:
    """Print a line on stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


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


def duration(seconds: float) -> str:
    """Return seconds as a person says them."""
    whole = round(seconds)
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


class Progress:
    """A listener that shows a run: a progress bar on a terminal, lines in a pipe, nothing if quiet."""

    def __init__(self, quiet: bool = False, also: Sequence[Listener] = ()) -> None:
        self.quiet = quiet
        self.also = also
        self._bar: Any = None
        self._task: Any = None
        self._score = ""

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
            print(f"\r{text}", end="\n" if event["done"] else "", file=sys.stderr, flush=True)
        elif event["done"]:
            self._line(text)

    def _note(self, event: Event) -> None:
        self._line(f"note: {event['text']}")

    def _trial(self, event: Event) -> None:
        found = "the loss is no number" if event["score"] is None else f"{event['metric']} {event['score']:.4f}"
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
        self._line(
            f"{event['method']} on {event['base']}, {counted(settings['epochs'], 'epoch')}, lr {settings['lr']:g}, "
            f"batch {settings['batch_size']}, seed {settings['seed']}"
        )
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
            self._bar.update(self._task, completed=event["seen"], description=description, state=state)

    def _epoch(self, event: Event) -> None:
        self._score = f"{event['metric']} {event[event['metric']]:.3f}  "
        best = "  ← best so far" if event["best"] == event["epoch"] else ""
        self._line(
            f"epoch {event['epoch']:>2}/{event['epochs']}  loss {event['train_loss']:.4f}  "
            f"{event['metric']} {event[event['metric']]:.4f}  {duration(event['seconds'])}{best}"
        )

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)


def comparison_progress(event: Event, quiet: bool) -> None:
    """Print the notes of a comparison, and a line for each cell that begins."""
    if event["event"] == "note":
        say(f"note: {event['text']}", quiet)
    elif event["event"] == "cell":
        tried = "".join(f", {key} {event[key]:g}" for key in ("lr", "epochs") if event[key] is not None)
        left = "" if event["left"] is None else f"   about {duration(event['left'])} left"
        say(f"{event['number']}/{event['cells']}  {event['method']}{tried}, seed {event['seed']}{left}", quiet)
