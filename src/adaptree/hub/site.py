"""A store as a folder of pages that open from disk, without a server: a list to search, and a page for each task.

    DIR/index.html         the list: list.js shows the rows of tasks.js, site.css is the look, page.js what pages share
    DIR/tasks.js           a row for each task
    DIR/tasks/NAME.html    a task's commands, card, versions and lineage; NAME may hold one slash
    DIR/site.json          says that the folder is a site, so that it may be updated

The pages are written into a folder of their own and then moved into place, the list last: a site is never half there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from adaptree.compose.expression import parse
from adaptree.data.events import Listener, silent
from adaptree.errors import AdaptreeError, StoreError
from adaptree.hub import pages
from adaptree.hub.pages import Lineage, Link
from adaptree.kinds.metrics import LOWER_IS_BETTER
from adaptree.reports.json_text import json_text
from adaptree.reports.text import printable
from adaptree.tasks import beside
from adaptree.tasks.beside import NOTES, TAG
from adaptree.tasks.folders import delete_stale
from adaptree.tasks.names import VERSION
from adaptree.tasks.record import FUSES, MADE_OF, ON, REBASED, RECORD, Record, corrupt, read_record
from adaptree.tasks.store import Store
from adaptree.tasks.summary import Summary

ASSETS = ("site.css", "page.js", "list.js")
LIST, ROWS, MARK, TASKS, TMP = "index.html", "tasks.js", "site.json", "tasks", ".tmp"
MOST_LABELS = 40
"""Labels of a task that the list can be searched by."""
LONGEST_LABEL = 60
EVERY = 100
"""Pages between two events."""
RELATIONS = {FUSES: "fused from", MADE_OF: "made of", ON: "on top of"}
"""How a task comes from others, by the keys of its record's `extra` that hold compositions."""
UNREADABLE = (AdaptreeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised by a version that was removed or damaged, or whose record holds values of forms that no card has."""
LANGUAGE = re.compile(r"lang/([a-z0-9_-]+)")


@dataclass(frozen=True)
class Site:
    """A site that was written."""

    folder: Path
    tasks: int
    damaged: Sequence[Summary]
    """The tasks that could not be read; their pages say why."""

    @property
    def index(self) -> Path:
        return self.folder / LIST


@dataclass(frozen=True)
class Entry:
    """A task as the list and the other pages need it; its card is made from its record when its page is written."""

    summary: Summary
    tags: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By version."""
    notes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By version, each with its time before it."""
    parents: Sequence[Link] = ()
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        return f"{self.summary.name}@{self.summary.version}"


def write_site(
    store: Store,
    folder: str | Path,
    *,
    title: str = "Tasks",
    url: str = "",
    force: bool = False,
    on_event: Listener = silent,
) -> Site:
    """Write the pages of a store into a folder, or update the site that is there; pages of removed tasks go.

    `url` is where others reach the store, for the commands on the pages. A folder with other files in it is refused,
    unless `force` says that the site may stand among them. A task that is damaged has a page that says so.
    """
    target = Path(os.path.abspath(Path(folder).expanduser()))
    check_place(target, force=force)
    new = not target.exists()
    staging = target.parent / f".{target.name}-{uuid.uuid4().hex}" if new else target / TMP / uuid.uuid4().hex
    try:
        if not new:
            delete_stale(target / TMP)
        staging.mkdir(parents=True)
        entries = _write(store, staging, title, url, on_event)
        if new:
            os.rename(staging, target)
        else:
            _update(staging, target)
    except OSError as error:
        raise StoreError(
            f"cannot write {target}: {error.strerror or error}.", hint="Make room, or choose another folder."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process may be writing
            (target / TMP).rmdir()
    return Site(target, len(entries), [entry.summary for entry in entries if entry.summary.problem])


def check_place(folder: Path, *, force: bool) -> None:
    """Raise StoreError unless a site may be written here: nothing, an empty folder, or a site; hidden files may be."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, and a site is a folder.", hint="Choose another name.")
    others = sorted(path.name for path in folder.glob("[!.]*")) if folder.is_dir() else []
    if not others or (folder / MARK).is_file():
        return
    if TASKS in others:
        raise StoreError(
            f"{folder} is not a site, and has a folder '{TASKS}' of its own.", hint="Choose an empty folder."
        )
    if not force:
        raise StoreError(
            f"{folder} is not a site, and is not empty ({others[0]}, …).",
            hint="Choose an empty folder, or --force: files of the site's names are replaced, others stay.",
        )


def _write(store: Store, folder: Path, title: str, url: str, on_event: Listener) -> list[Entry]:
    """Write all files of a site into a new folder."""
    entries = [_entry(store, summary) for summary in store.list()]
    known = {entry.summary.name for entry in entries}
    children: dict[str, list[Link]] = defaultdict(list)
    for entry in entries:
        for link in entry.parents:
            children[link.name].append(Link(link.relation, entry.reference))
    for number, entry in enumerate(entries, 1):
        lineage = Lineage(entry.parents, children.get(entry.summary.name, ()), known)
        path = folder / TASKS / f"{entry.summary.name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_task_page(store, entry, lineage, title, url), encoding="utf-8")
        if number % EVERY == 0 or number == len(entries):
            on_event({"event": "pages", "done": number, "of": len(entries)})
    columns = list(dict.fromkeys(itertools.chain.from_iterable(entry.row for entry in entries)))
    rows = [[entry.row.get(column) for column in columns] for entry in entries]
    (folder / ROWS).write_text(f"window.tasks = {json_text({'columns': columns, 'rows': rows})};\n", encoding="utf-8")
    for name in ASSETS:
        (folder / name).write_bytes((resources.files("adaptree.hub") / "assets" / name).read_bytes())
    (folder / MARK).write_text(json_text({"made_by": "adaptree site", "title": title, "tasks": len(entries)}) + "\n")
    (folder / LIST).write_text(pages.list_page(title, len(entries)), encoding="utf-8")
    return entries


def _update(staging: Path, target: Path) -> None:
    """Move new files over those of a site, the list last; then delete the pages of tasks that are gone."""
    fresh = {path.relative_to(staging) for path in _files(staging)}
    order = {MARK: 0, ROWS: 2, LIST: 3}
    for path in sorted(fresh, key=lambda path: (order.get(path.as_posix(), 1), path)):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, target / path)
    for path in _files(target / TASKS):
        if path.relative_to(target) not in fresh:
            path.unlink()
    for place in (target / TASKS).iterdir():
        with contextlib.suppress(OSError):  # only a namespace without tasks is empty
            place.rmdir()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder."""
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def _entry(store: Store, summary: Summary) -> Entry:
    """Return what the list says of a task; of a damaged one, what is wrong with it."""
    tags, notes = _tags_and_notes(store, summary.name)
    try:
        if not summary.problem:
            record = _record(store, summary)
            return Entry(summary, tags, notes, parents(record), _row(summary, record, tags.get(summary.version, ())))
    except UNREADABLE as error:
        summary = _damaged(summary, error)
    numbers = {"name": summary.name, "version": summary.version, "versions": summary.versions}
    return Entry(summary, tags, notes, row={**numbers, "problem": printable(summary.problem)})


def _row(summary: Summary, record: Record, tags: Sequence[str]) -> dict[str, Any]:
    """Return what the list shows of a task, and searches."""
    part = "test" if record.metrics.get("test") else "validation"
    low, high = record.intervals.get(part, {}).get(summary.metric) or (None, None)
    return {
        "name": summary.name,
        "version": summary.version,
        "versions": summary.versions,
        "kind": printable(record.kind),
        "method": printable(record.method.partition("(")[0]),
        "base": printable(summary.base),
        "languages": languages(record),
        "labels": [printable(str(label)[:LONGEST_LABEL]) for label in record.labels[:MOST_LABELS]],
        "more": max(0, len(record.labels) - MOST_LABELS),
        "data": printable(str(record.data.get("name", ""))[:LONGEST_LABEL]),
        "metric": printable(summary.metric),
        "score": summary.score,
        "low": low,
        "high": high,
        "lower": summary.metric in LOWER_IS_BETTER,
        "trained": summary.trained,
        "percent": summary.trained_percent,
        "bytes": summary.bytes,
        "created": printable(summary.created[:19]),
        "tags": [printable(tag) for tag in tags],
    }


def _task_page(store: Store, entry: Entry, lineage: Lineage, title: str, url: str) -> str:
    """Return the page of a task."""
    summary, history = entry.summary, [entry.summary]
    try:
        if summary.versions > 1:
            history = store.history(summary.name)
        if not summary.problem:
            record, versions = _record(store, summary), pages.Versions(history, entry.tags, entry.notes)
            pictures = pages.pictures(record, store.path_of(entry.reference))
            known = languages(record)
            return pages.task_page(record, pictures, versions, lineage, languages=known, title=title, url=url)
    except UNREADABLE as error:
        summary = _damaged(summary, error)
    return pages.damaged_page(summary, pages.Versions(history, entry.tags, entry.notes), title)


def _damaged(summary: Summary, error: Exception) -> Summary:
    """Return the summary of a task that cannot be shown."""
    called = f"{summary.name}@{summary.version}"
    if not isinstance(error, AdaptreeError):
        error = corrupt(called, RECORD, f"no card can be made of it ({type(error).__name__}: {error})")
    return Summary(name=summary.name, version=summary.version, versions=summary.versions, problem=error.what)


def _record(store: Store, summary: Summary) -> Record:
    """Read a version's record; it has the name and version that it has here."""
    called = f"{summary.name}@{summary.version}"
    record = read_record(store.path_of(called), called=called)
    return dataclasses.replace(record, name=summary.name, version=summary.version)


def _tags_and_notes(store: Store, name: str) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Return a task's tags and the notes about it, by version."""
    tags: dict[int, list[str]] = defaultdict(list)
    notes: dict[int, list[str]] = {}
    for file in store.beside(name):
        if file.endswith(TAG):
            for version in beside.lines(store.read_beside(name, file))[-1:]:
                if VERSION.fullmatch(version):
                    tags[int(version)].append(file.removesuffix(TAG))
        elif file.endswith(NOTES) and VERSION.fullmatch(number := file.removesuffix(NOTES)):
            notes[int(number)] = beside.lines(store.read_beside(name, file))
    return dict(tags), notes


def parents(record: Record) -> list[Link]:
    """Return the tasks that a task comes from, each with how."""
    found = [Link(how, name) for key, how in RELATIONS.items() for name in _named(record.extra.get(key, ""))]
    if moved := record.extra.get(REBASED, {}).get("reference"):
        found.append(Link("moved from another base:", str(moved)))
    return list(dict.fromkeys(found))


def languages(record: Record) -> list[str]:
    """Return the languages of a task, known by the names lang/XX: its own, or those of the tasks below it."""
    found = (LANGUAGE.match(name) for name in (record.name, *_named(record.extra.get(ON, ""))))
    return sorted({match[1] for match in found if match})


def _named(composition: str) -> tuple[str, ...]:
    """Return the tasks that a composition's text names; none if it cannot be read."""
    try:
        return parse(composition).names if composition else ()
    except AdaptreeError:
        return ()
