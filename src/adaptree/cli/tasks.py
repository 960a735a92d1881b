"""adaptree list, show, history, remove"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, counted, emit, emit_one, fitting, page, say, size
from adaptree.errors import UsageError
from adaptree.tasks.selection import Sort

if TYPE_CHECKING:
    from adaptree.tasks.store import Store

PAGE = 50
"""Tasks that a terminal shows at once."""
LEAST = ("trained", "base", "created", "metric", "percent")
"""Columns that a narrow terminal does without, in this order."""
TITLES = {
    "task": "task", "kind": "kind", "method": "method", "base": "base", "metric": "metric", "score": "score",
    "trained": "trained", "percent": "% of base", "size": "size", "created": "created",
}  # fmt: skip


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="Only names that contain this, or match it: 'lang/*'.")] = "",
    kind: Annotated[str, typer.Option(help="Only tasks of this kind.")] = "",
    base: Annotated[str, typer.Option(help="Only tasks on this base: its name, or how its fingerprint begins.")] = "",
    method: Annotated[str, typer.Option(help="Only tasks of this method: houlsby, or houlsby:64.")] = "",
    tag: Annotated[str, typer.Option(help="The versions that have this tag, instead of the newest.")] = "",
    sort: Annotated[Sort, typer.Option(help="By name, or the best, newest or largest first.")] = Sort.name,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"Tasks shown. Default: {PAGE} on a terminal, else all.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Tasks left out before the first that is shown.")] = None,
    number: Annotated[int | None, typer.Option("--page", min=1, help=f"Which {PAGE} tasks (or --limit).")] = None,
    store: shared.StoreOption = None,
    index: shared.IndexOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List the tasks in the store, the newest version of each."""
    from adaptree.tasks.selection import select
    from adaptree.tasks.store import Store

    if number is not None and offset is not None:
        raise UsageError("--page and --offset cannot be used together.", hint="--page 3, or --limit 50 --offset 100")
    where = Store(store, index=index)
    every = [row.summary for row in where.rows(tag=tag)]
    found = select(every, pattern, kind=kind, base=base, method=method, sort=sort)
    if limit is None and (number is not None or (form is Format.table and sys.stdout.isatty())):
        limit = PAGE
    first = offset if offset is not None else ((number or 1) - 1) * (limit or 0)
    shown = found[first : None if limit is None else first + limit]
    _emit(shown, form)
    if not every and not tag:
        say(f"no tasks in {where.location} yet.  adaptree train DATA --name NAME", quiet)
    elif not shown:
        say(f"none of {counted(len(every), 'task')} is shown: {len(found):,} match.  adaptree list", quiet)
    elif first + len(shown) < len(found):
        more = f"--page {number + 1}" if number else f"--limit {limit} --offset {first + len(shown)}"
        say(f"{first + 1:,} to {first + len(shown):,} of {counted(len(found), 'task')}.  The next: {more}", quiet)


@app.command()
def history(
    task: Annotated[str, shared.task_argument("A task's name.")],
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List all versions of a task."""
    from adaptree.tasks.store import Store

    where = Store(store)
    found = where.history(task)
    _emit(found, form, [_beside(where, one.name, one.version) for one in found])


@app.command()
def show(
    task: Annotated[str, shared.task_argument("A task's name, or name@version.")],
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Show a task's card: laid out on a terminal, Markdown in a pipe, and with --format json its whole record."""
    from adaptree.reports import card
    from adaptree.reports.markdown import plain, section
    from adaptree.tasks.record import read_record
    from adaptree.tasks.signing import signers
    from adaptree.tasks.store import Store

    where = Store(store)
    folder, name = where.path_of(task), task.partition("@")[0]
    called = f"{name}@{folder.name}"
    record = replace(read_record(folder, called=called), name=name, version=int(folder.name))
    more: dict[str, list[str]] = {**_beside(where, name, int(folder.name)), "signed": signers(folder, called=called)}
    more = {key: found for key, found in more.items() if found}
    noted = section("Since then", "\n".join(f"- {plain(line, 1000)}" for line in _noted(more))) if more else ""
    if form is not Format.table:
        emit_one({**record.to_json(), **more}, form)
    elif sys.stdout.isatty():
        page(f"{card.body(record)}\n{noted}")
        if figures := sorted(folder.glob("*.svg")):
            say(f"figures: {'   '.join(map(str, figures))}", quiet)
    else:
        page(f"{card.write(record)}\n{noted}")


@app.command()
def remove(
    task: Annotated[str, shared.task_argument("A task's name (all versions), or name@version.")],
    force: Annotated[
        bool, typer.Option("--force", help="Remove it even if it has a tag, or other tasks are made of it.")
    ] = False,
    store: shared.StoreOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Remove a task, or one version of it."""
    from adaptree.tasks.store import Store

    count = Store(store).remove(task, force=force)
    say(f"removed {task} ({count} version{'s' if count != 1 else ''})", quiet)


def _emit(found: Sequence[Any], form: Format, more: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print a line for each summary, with `more` columns for each where there are such."""
    if form is not Format.table:
        emit(({**asdict(one), **beside} for one, beside in zip(found, more or [{}] * len(found), strict=True)), form)
        return
    from adaptree.tasks.signing import can_check, owner

    rows = [
        {
            "task": f"{s.name}@{s.version}", "kind": s.kind if not s.problem else f"✘ {s.problem}", "method": s.method,
            "base": s.base, "metric": s.metric, "score": s.score, "trained": s.trained, "percent": s.trained_percent,
            "size": size(s.bytes), "created": s.created[:16].replace("T", " "),
            "signed": " ".join(map(owner, s.signed_by.split())),
        }
        for s in found
    ]  # fmt: skip
    for row, beside in zip(rows, more or [{"tags": one.tags} for one in found], strict=True):
        row["noted"] = "; ".join(_noted(beside))
    more_titles = {"signed": "signed by", "noted": "noted"}
    titles = TITLES | {key: title for key, title in more_titles.items() if any(row.get(key) for row in rows)}
    if "signed" in titles and not can_check():
        titles["signed"] = "signed by (not checked)"
    emit(rows, form, fitting(rows, titles, LEAST))


def _beside(store: Store, name: str, version: int) -> dict[str, list[str]]:
    """Return the tags and the notes of a version."""
    tags = [tag for tag, number in store.tags(name).items() if number == version]
    return {"tags": tags, "notes": store.notes(f"{name}@{version}")}


def _noted(beside: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a version's tags, notes and signatures in words, each note after its day."""
    notes = (line.partition(" ") for line in beside.get("notes", ()))
    return [
        *(f"@{tag}" for tag in beside.get("tags", ())),
        *(f"{when[:10]} {text}" for when, _, text in notes),
        *beside.get("signed", ()),
    ]
