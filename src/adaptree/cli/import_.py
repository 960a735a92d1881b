"""adaptree import"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptree.cli import app as shared
from adaptree.cli import options
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, out, say
from adaptree.errors import UsageError

TITLES = {"task": "task", "was": "in the file", "state": "", "signed": "signed by"}


@app.command("import")
@options.takes(*options.COMPUTING)
def import_(
    file: Annotated[
        Path, typer.Argument(help="A file that adaptree export wrote, or a folder that peft or adapters saved.")
    ],
    name: Annotated[str | None, typer.Option("--as", help="Another name for the task; of a folder, its name.")] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", help="The tasks' base. Default: where this machine has it."),
    ] = None,
    trust: Annotated[
        str | None, typer.Option("--trust", help="Refuse what this key (a name or a public key) has not signed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and add nothing.")] = False,
    labels: Annotated[
        str | None,
        typer.Option("--labels", help="Of a folder: what its head's outputs stand for, in their order: 'bad, good'."),
    ] = None,
    pair: Annotated[bool, typer.Option("--pair", help="Of a folder: it takes two texts for each answer.")] = False,
    store: shared.StoreOption = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
    **values: Any,
) -> None:
    """Check a file of tasks, or a folder of another library, and add it to the store; nothing is added unless all is
    right."""
    from adaptree import api
    from adaptree.tasks.store import Store

    given = options.given(values)
    if file.is_dir():
        if trust or dry_run:
            raise UsageError(f"--{'trust' if trust else 'dry-run'} is for a file, not a folder.", hint="Leave it out.")
        _import_folder(file, Store(store), name, base or "minilm", labels, pair, form, quiet, **given)
        return
    if only := [f"--{name.replace('_', '-')}" for name in given] + ["--labels"] * bool(labels) + ["--pair"] * pair:
        raise UsageError(f"{only[0]} is for a folder that peft or adapters saved.", hint="Leave it out.")
    done = api.import_file(file, Store(store), name=name, base=base, trust=trust, dry_run=dry_run)
    if form is not Format.table:
        emit((asdict(each) for each in done), form)
        return
    new = "would be added" if dry_run else "added"
    rows = [
        {
            "task": each.task,
            "was": each.was,
            "state": ("here already" if each.here else new) + (" (part)" if each.part else ""),
            "signed": ", ".join(each.signed_by) or "-",
        }
        for each in done
    ]
    emit(rows, form, TITLES)
    for note, tasks in _by_note((note, each.task) for each in done for note in each.notes).items():
        say(f"note: {', '.join(tasks[:3])}{' …' * (len(tasks) > 3)}: {note}", quiet)


def _by_note(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the tasks that have the same note."""
    found: dict[str, list[str]] = {}
    for note, task in pairs:
        found.setdefault(note, []).append(task)
    return found


def _import_folder(
    folder: Path,
    store: Any,
    name: str | None,
    base: str,
    labels: str | None,
    pair: bool,
    form: Format,
    quiet: bool,
    **opening: Any,
) -> None:
    """Keep what peft or adapters saved as a task: LoRA, IA³, bottlenecks, fusion and heads."""
    from adaptree import api

    said = None if labels is None else [label.strip() for label in labels.split(",")]
    kept = api.import_folder(folder, store, base=base, name=name, labels=said, pair=pair, **opening)
    record = kept.record
    if form is Format.table:
        library = record.extra["imported"]["library"]
        what = f"{record.kind}, {record.method} on {record.base['name']}, from {library}"
        out().print(f"{record.reference}: {what}", soft_wrap=True)
    else:
        emit_one(api.result(kept), form)
    if record.kind == "attached":
        say(f'it has no head, and can be put below others: "stack({record.name}, …)"', quiet)
    else:
        say(f"it has no score here yet.  adaptree evaluate {record.name} DATA", quiet)
