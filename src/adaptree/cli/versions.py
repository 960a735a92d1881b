"""adaptree tag, note, rollback, prune, diff"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.predict import split_options
from adaptree.cli.show import Format, Progress, counted, emit, emit_one, out, say, size
from adaptree.reports.text import short

MOST_ANSWERS = 20
"""Changed answers that a table shows; other formats have all."""
WIDEST = 60
"""Letters of a value in a table."""


@app.command()
def tag(
    task: Annotated[str, shared.task_argument("A version: name@3; a name alone is its newest.")],
    word: Annotated[str, typer.Argument(help="The tag, such as stable: from then on, name@stable is that version.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the tag off.")] = False,
    store: shared.StoreOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Give a version a tag, or move a tag to it; a tagged version is not removed."""
    from adaptree.tasks.store import Store

    where = Store(store)
    if remove:
        where.untag(task.partition("@")[0], word)
        say(f"{task.partition('@')[0]} has no tag {word} any more", quiet)
    else:
        where.tag(task, word)
        name, number = task.partition("@")[0], where.path_of(task).name
        say(f"{name}@{word} is {name}@{number}", quiet)


@app.command()
def note(
    task: Annotated[str, shared.task_argument("A version: name@3; a name alone is its newest.")],
    text: Annotated[str, typer.Argument(help="What to remember.")],
    store: shared.StoreOption = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Note a sentence about a version, which `history` and `show` repeat."""
    from adaptree.tasks.store import Store

    Store(store).note(task, text)
    say(f"noted.  adaptree history {task.partition('@')[0]}", quiet)


@app.command()
def rollback(
    task: Annotated[str, shared.task_argument("The version to go back to: name@2, or name@stable.")],
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Make a new version of a task with the weights of an old one."""
    from adaptree import api
    from adaptree.tasks.record import ROLLED_BACK
    from adaptree.tasks.store import Store
    from adaptree.tasks.versions import rollback as go_back

    added = go_back(Store(store), task)
    source = added.record.extra[ROLLED_BACK]
    if form is Format.table:
        out().print(f"{added.record.reference} has the weights and the scores of {source}", soft_wrap=True)
    else:
        emit_one({**api.result(added), ROLLED_BACK: source}, form)


@app.command()
def prune(
    tasks: Annotated[list[str] | None, shared.task_argument("Tasks. Default: all.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest versions of each task stay.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Remove old versions; those that have a tag, or that other tasks need, stay."""
    from adaptree.tasks.store import Store
    from adaptree.tasks.versions import prune as clear

    found = clear(Store(store), tasks or (), keep=keep, dry_run=dry_run)
    if form is Format.table:
        done = "would be removed" if dry_run else "removed"
        emit([{"task": old.task, "what": done if old.removed else f"kept: {old.why}", "size": size(old.bytes)}
              for old in found], form)  # fmt: skip
        gone = [old for old in found if old.removed]
        say(f"{counted(len(gone), 'version')} {done}, {size(sum(old.bytes for old in gone))}", quiet)
    else:
        emit([asdict(old) for old in found], form)


@app.command()
@options.takes(*options.COLUMNS, *options.COMPUTING, base=options.OF_TASK)
def diff(
    a: Annotated[str, shared.task_argument("A task's name, name@version or name@tag.")],
    b: Annotated[str, shared.task_argument("Another version, or another task.")],
    data: Annotated[
        str | None, typer.Option("--data", help="A file: also show the rows that the two answer differently.")
    ] = None,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Show where two versions differ: scores, settings, data, sizes, and the answers to a file."""
    from adaptree import api
    from adaptree.tasks.store import Store

    reading, opening = split_options(values)
    found = api.diff(Store(store), a, b, data, on_event=Progress(quiet), **reading, **opening)
    if form in (Format.json, Format.jsonl):
        emit_one(found.to_dict(), form)
        return
    answers = found.answers
    if form is Format.csv:
        facts = [{**asdict(fact), "change": fact.change} for fact in found.facts]
        emit(facts if answers is None else [asdict(row) for row in answers.changed], form)
        return
    rows = [
        {"what": fact.what, "a": _cell(fact.a), "b": _cell(fact.b), "change": _cell(fact.change)}
        for fact in found.facts
    ]
    emit(rows, form, {"what": "", "a": found.a, "b": found.b, "change": "change"})
    if found.same_weights:
        out().print("the weights are the same", soft_wrap=True)
    if answers is None:
        return
    changed = [
        {
            "row": each.row, "text": short(each.text, WIDEST), "a": _cell(each.a), "b": _cell(each.b),
            "gold": _cell(each.gold), "better": {"a": found.a, "b": found.b, "": "-"}[each.better],
        }
        for each in answers.changed[:MOST_ANSWERS]
    ]  # fmt: skip
    titles = {"row": "row", "text": "text", "a": found.a, "b": found.b, "gold": "label", "better": "better"}
    emit(
        changed, form, {key: title for key, title in titles.items() if answers.scores or key not in ("gold", "better")}
    )
    line = f"{len(answers.changed):,} of {answers.rows:,} answers changed"
    if answers.scores:
        line += f": {found.a} is better in {answers.better('a'):,} of them, {found.b} in {answers.better('b'):,}"
        scores = [
            {"metric": name, "a": score["a"], "b": score["b"], "change": score["b"] - score["a"]}
            for name, score in answers.scores.items()
        ]
        emit(scores, form, {"metric": "metric", "a": found.a, "b": found.b, "change": "change"})
    out().print(line, soft_wrap=True)
    if answers.unlabelled:
        say(f"note: without labels: {answers.unlabelled}", quiet)


def _cell(value: Any) -> Any:
    """Return a value as a cell of a table: numbers as they are read best, long texts cut."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else short(value, WIDEST)
