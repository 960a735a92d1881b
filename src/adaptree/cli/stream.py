"""adaptree stream"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.config import Config
from adaptree.cli.show import Format, column, counted, emit, fitting, out, say, size
from adaptree.reports.times import about, duration

if TYPE_CHECKING:
    from adaptree.data.events import Event
    from adaptree.training.stream import StreamReport

NOT_COMMON = ("name", "resume", "joint", "temperature", "validation", "test")
TITLES = {
    "file": "file", "task": "task", "kind": "kind", "rows": "rows", "state": "state", "metric": "metric",
    "score": "score", "percent": "% of base", "size": "size", "seconds": "seconds",
}  # fmt: skip
LEAST = ("metric", "kind", "rows", "seconds", "percent")
"""Columns that a narrow terminal does without, in this order."""
ENDED = ("trained", "unchanged", "failed", "stopped")


@app.command()
@options.takes(*(name for name in options.RUN if name not in NOT_COMMON), *options.SETTINGS)
def stream(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|LIST", help="A folder of data files, or a text, csv or jsonl file that names them."
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", help="Go on with files that arrive, until Ctrl-C.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Train so many files at a time, each in a process.")] = 1,
    cluster: shared.ClusterOption = None,
    namespace: Annotated[str | None, typer.Option(help="Call the tasks NAMESPACE/FILE.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try files again that failed and have not changed.")] = False,
    size: Annotated[
        int | None, typer.Option(help="The method's main number: a bottleneck's width, LoRA's rank, …")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Only these layers: 3-5, 0,2,4 or top:2.")] = None,
    config: Config = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> int:
    """Train a task on each file of a folder, one after another as they arrive, each alone."""
    from adaptree.training.config import with_size
    from adaptree.training.stream import stream as run_stream  # without api, torch is imported only to train

    given = with_size(options.given(values), size, layers)
    with StreamProgress(quiet, debug) as progress:
        report = run_stream(
            source,
            store=store,
            watch=watch,
            jobs=jobs,
            cluster=cluster,
            namespace=namespace,
            retry=retry,
            on_event=progress,
            **given,
        )
    if form is Format.table:
        rows = [_cells(asdict(row)) for row in report.rows]
        emit(rows, form, fitting(rows, TITLES, LEAST))
        for line in totals(report):
            out().print(line, soft_wrap=True)
    else:
        emit([asdict(row) for row in report.rows], form)
    return _end(report, watch, quiet)


def totals(report: StreamReport) -> list[str]:
    """Return a sentence on the size of the tasks of each base, against one full model a task."""
    return [
        f"{counted(each.tasks, 'task')}: {size(each.bytes)} beside {each.base}, together {each.times:.2f} times the "
        f"base; one full model each would be {each.tasks} times."
        for each in report.sizes
    ]


def _end(report: StreamReport, watch: bool, quiet: bool) -> int:
    """Print what holds and what is left to do; return the exit code."""
    if report.verified and not report.changed and report.base_is_intact:
        say(f"the base and {counted(report.verified, 'stored version')} are bit for bit what they were.", quiet)
    for reference in report.changed:
        say(f"✘ {reference} is not what it was when it was stored.  adaptree verify {reference}")
    if not report.base_is_intact:
        say("✘ the base's weights changed in memory while a task was trained: do not trust the tasks of this run.")
    if report.stopped:
        left = sum(row.state == "stopped" for row in report.rows)
        say(f"✘ stopped: {counted(left, 'file')} left.  Run the same command to go on.")
    if failed := report.failed:
        say(f"✘ {len(failed)} of {counted(len(report.rows), 'file')} could not be trained on.")
    bad = failed or report.changed or not report.base_is_intact or (report.stopped and not watch)
    return 1 if bad else 0


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a file's row as a table shows it."""
    task = f"{row['task']}@{row['version']}" if row["version"] else row["task"]
    return {
        **row, "task": task, "state": row.get("progress") or row["state"], "percent": row["trained_percent"],
        "size": None if row["bytes"] is None else size(row["bytes"]),
    }  # fmt: skip


class StreamProgress:
    """A listener that shows a stream: a live table on a terminal, lines in a pipe, only errors if quiet."""

    def __init__(self, quiet: bool = False, debug: bool = False) -> None:
        self.quiet, self.debug = quiet, debug
        self._rows: dict[str, dict[str, Any]] = {}
        self._caption = ""
        self._console: Any = None
        self._live: Any = None

    def __enter__(self) -> StreamProgress:
        if not self.quiet and sys.stderr.isatty():
            from rich.live import Live

            self._console = out(stderr=True)
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *args: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        if event["event"] == "file":
            key = f"{event['file']} {event['task']}"
            if event["state"] in ENDED:  # the rows that a table keeps are those that ended last
                self._rows.pop(key, None)
            self._rows[key] = event
            left = "" if not event["left"] else f", about {about(event['left'])} left"
            self._caption = f"{event['done']} of {counted(event['files'], 'file')} done{left}"
            self._file(event, left)
        elif event["event"] == "note":
            self._line(f"{'warning' if event.get('warning') else 'note'}: {event['text']}")
        elif event["event"] == "found":
            files, train = counted(event["files"], "file"), event["train"]
            self._line(f"{files}; {train:,} to train on ({size(event['bytes'])})")

    def _file(self, event: Event, left: str) -> None:
        """Print a line for a file that has ended, and in a pipe also for one that begins."""
        task = f"{event['task']}@{event['version']}" if event["version"] else event["task"]
        if event["state"] == "failed":
            self._print(f"✘ {event['file']}: {event['why']}")
            for line in event.get("trace", "").splitlines() if self.debug else ():
                self._print(line)
        elif self._live is not None:
            return
        elif event["state"] == "trained":
            score = "" if event["score"] is None else f"{event['metric']} {event['score']:.4f}, "
            price = f"{event['trained_percent']:.2f} % of the base, {size(event['bytes'])}"
            self._line(
                f"✔ {event['file']} → {task}: {event['kind']}, {event['rows']:,} rows, {score}{price}, "
                f"{duration(event['seconds'])}{left}"
            )
        elif event["state"] == "unchanged":
            self._line(f"= {event['file']} → {task}: unchanged")
        elif event["state"] == "training" and "estimate" in event:
            self._line(f"  {event['file']}: about {about(event['estimate'])}, or less with early stopping")

    def _line(self, text: str) -> None:
        if not self.quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._console.print(text)
        else:
            say(text)

    def _table(self) -> Any:
        """Return the table as it is now: as many files as the terminal has room for, those under way first."""
        from rich import box
        from rich.table import Table

        room = max(3, self._console.size.height - 6)
        rows = list(self._rows.values())
        active = [row for row in rows if row["state"] == "training"]
        ended = [row for row in rows if row["state"] in ENDED]
        waiting = [row for row in rows if row["state"] == "waiting"]
        chosen = [*active, *ended[-max(1, room - len(active)) :], *waiting][:room]
        shown = [_cells(row) for row in rows if any(row is each for each in chosen)]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=self._caption, caption_justify="left")
        titles = fitting(shown, TITLES, LEAST, self._console.width)
        columns = {key: column([row.get(key) for row in shown]) for key in titles}
        for key, title in titles.items():
            table.add_column(title, no_wrap=key != "file")
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells)
        return table
