"""adaptree site"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, count, counted, emit_one, out, say
from adaptree.data.events import Event


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder, or a site to update.")],
    title: Annotated[str, typer.Option(help="The heading of the list.")] = "Tasks",
    url: Annotated[
        str, typer.Option(help="Where others reach this store, for the commands on the pages: s3://team/tasks.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Write among the other files of a folder that is not a site.")
    ] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Write a static site of the store, which opens offline: search, filters, and a page for every task."""
    from adaptree import api
    from adaptree.tasks.store import Store

    made = api.site(Store(store), folder, title=title, url=url, force=force, on_event=Written(quiet))
    for damaged in made.damaged:
        say(f"warning: {damaged.problem}", quiet)
    if form is Format.table:
        out().print(str(made.index), soft_wrap=True)
    else:
        found = {"index": str(made.index), "tasks": made.tasks, "damaged": [each.name for each in made.damaged]}
        emit_one(found, form)
    say(f"{counted(made.tasks, 'task')}. Open the file in a browser, or copy the folder to any web server.", quiet)


class Written(Progress):
    """Shows on one line of a terminal how many pages are written."""

    def _pages(self, event: Event) -> None:
        if sys.stderr.isatty():
            count(f"{event['done']:,} of {event['of']:,} pages written", event["done"] == event["of"])
