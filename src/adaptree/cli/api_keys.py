"""adaptree keys api new, list, remove"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.keys import group as keys
from adaptree.cli.show import Format, emit, out, say

group = typer.Typer(help="Keys that clients of `adaptree serve` ask with.", no_args_is_help=True)
keys.add_typer(group, name="api")

FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        help="The file of API keys, or postgresql://… for several machines. Default: $ADAPTREE_API_KEYS, else in your "
        "folder for settings.",
    ),
]


@group.command()
def new(
    tenant: Annotated[str, typer.Option(help="Confine it to the tasks TENANT/…; it need not write the TENANT/.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option(help="predict (the default), train (add tasks) or admin (all). Repeatable.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second; 0 is any number.")] = 0.0,
    quota: Annotated[int, typer.Option(min=0, help="Texts a day; 0 is any number.")] = 0,
    note: Annotated[str, typer.Option(help="Whose it is, for you to remember.")] = "",
    file: FileOption = None,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Make an API key and print it: this is the only time that it can be seen."""
    from adaptree.serve.keys import keys_file, new_key, place, shown

    where = place(file) if file else keys_file()
    key, text = new_key(where, tenant=tenant, scopes=scope or ("predict",), rate=rate, quota=quota, note=note)
    out().print(text, soft_wrap=True, markup=False, highlight=False)
    at = shown(where)
    whose = f" of the tenant {key.tenant}" if key.tenant else ""
    say(
        f"key {key.id}{whose} for {', '.join(key.scopes)}; {at} has only its hash.  adaptree serve --keys {at}",
        quiet,
    )


@group.command("list")
def list_(
    file: FileOption = None,
    store: shared.NoStore = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List API keys: who they are for, and never the keys themselves."""
    from adaptree.serve.keys import keys_file, place, read_keys, shown

    where = place(file) if file else keys_file()
    found = read_keys(where)
    rows = [{name: value for name, value in asdict(key).items() if name != "hash"} for key in found]
    if form is Format.table:
        rows = [{**row, "scopes": " ".join(row["scopes"])} for row in rows]
    emit(rows, form)
    if not found:
        say(f"no keys in {shown(where)} yet.  adaptree keys api new", quiet)


@group.command()
def remove(
    id: Annotated[str, typer.Argument(help="A key's id, as `list` shows it.")],
    file: FileOption = None,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Remove an API key: servers refuse it within a second."""
    from adaptree.serve.keys import keys_file, place, remove_key

    remove_key(place(file) if file else keys_file(), id)
    say(f"removed {id}", quiet)
