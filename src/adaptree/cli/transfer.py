"""adaptree push, pull"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, count, counted, emit, say, size
from adaptree.errors import UsageError

if TYPE_CHECKING:
    from adaptree.data.events import Event
    from adaptree.hub.transfer import Copied

Versions = Annotated[bool, typer.Option("--versions", help="All versions of a name, not only the newest.")]
Tags = Annotated[bool, typer.Option("--tags", help="Tags and notes, too.")]
TITLES = {"source": "task", "task": "copied as", "versions": "versions", "size": "size"}


@app.command()
def push(
    *,
    tasks: Annotated[list[str] | None, shared.task_argument("Names, name@version or name@tag.")] = None,
    to: Annotated[str, typer.Argument(metavar="URL|DIR", help="The store to copy to, or hf://USER/NAME.")],
    all_: Annotated[bool, typer.Option("--all", help="All tasks of the store.")] = False,
    versions: Versions = False,
    tags: Tags = False,
    private: Annotated[bool, typer.Option("--private", help="To hf://…: a new repository is private.")] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Copy tasks to another store: a folder, a URL such as s3://bucket/prefix, or hf://me/reviews for one task."""
    from adaptree import api
    from adaptree.tasks.store import Store

    if bool(tasks) == all_:
        raise UsageError("which tasks?", hint="adaptree push TASK… URL, or adaptree push --all URL")
    progress = partial(_progress, quiet=quiet)
    copied = api.push(tasks or (), to, store=Store(store), versions=versions, tags=tags, private=private,
                      on_event=progress)  # fmt: skip
    _report(copied, to, form, quiet)


@app.command()
def pull(
    source: Annotated[
        str, typer.Argument(metavar="URL|DIR", help="The store to copy from, STORE/TASK, or hf://USER/NAME.")
    ],
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Names, name@version or name@tag. Default: all that are there.")
    ] = None,
    versions: Versions = False,
    tags: Tags = False,
    name: Annotated[str | None, typer.Option("--as", help="From hf://…: another name for the task.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="From hf://…: the base to check it against; peft's need it.")
    ] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Copy tasks from another store: a folder, a URL such as s3://bucket/prefix, or hf://me/reviews."""
    from adaptree import api
    from adaptree.tasks.store import Store

    where, progress = Store(store), partial(_progress, quiet=quiet)
    copied = api.pull(source, tasks or (), store=where, versions=versions, tags=tags, name=name, base=base,
                      on_event=progress)  # fmt: skip
    _report(copied, where.location, form, quiet)


def _progress(event: Event, quiet: bool) -> None:
    """Show one line that counts, on a terminal."""
    if not quiet and sys.stderr.isatty():
        count(f"{event['number']:,} of {event['of']:,}: {event['source']}", event["number"] == event["of"])


def _report(copied: Sequence[Copied], to: str, form: Format, quiet: bool) -> None:
    if form is not Format.table:
        emit((asdict(each) for each in copied), form)
        return
    emit(({**asdict(each), "size": size(each.bytes)} for each in copied), form, TITLES)
    there = sum(not each.versions for each in copied)
    known = f"; {there:,} of {len(copied):,} were there already" if there else ""
    versions = counted(sum(each.versions for each in copied), "version")
    say(f"{versions}, {size(sum(each.bytes for each in copied))} copied to {to}{known}", quiet)
