"""adaptree keys new, list, show, trust, remove"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from adaptree.cli import app as shared
from adaptree.cli.app import app
from adaptree.cli.show import Format, emit, emit_one, out, say
from adaptree.tasks import signing

group = typer.Typer(help="Keys to sign tasks with, and those of people whom you trust.", no_args_is_help=True)
app.add_typer(group, name="keys")


@group.command()
def new(
    name: Annotated[str, typer.Argument(help="What you call it.")] = "me",
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Make a key of your own, and print its public half, to share."""
    key = signing.new_key(name)
    out().print(key.public, soft_wrap=True)
    say(f"the private half is in {signing.keys_folder()} and stays there.  adaptree export TASK FILE --sign", quiet)


@group.command("list")
def list_(
    store: shared.NoStore = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """List your keys and those that you trust."""
    found = signing.keys()
    if form is Format.table:
        rows = [{"key": key.name, "whose": "yours" if key.own else "trusted", "public": key.public} for key in found]
        emit(rows, form)
    else:
        emit((asdict(key) for key in found), form)
    if not found:
        say(f"no keys in {signing.keys_folder()} yet.  adaptree keys new", quiet)


@group.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A key's name. Default: your only one.")] = None,
    store: shared.NoStore = None,
    form: shared.FormatOption = Format.table,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Print a public key as one line, to share."""
    key = signing.own_key() if name is None else signing.find_key(name)
    if form is Format.table:
        out().print(key.public, soft_wrap=True)
    else:
        emit_one(asdict(key), form)


@group.command()
def trust(
    name: Annotated[str, typer.Argument(help="What you call its owner.")],
    public: Annotated[str, typer.Argument(help="The public key that the owner gave you: ed25519:…")],
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Keep somebody's public key."""
    signing.trust(name, public)
    say(f"{name} is trusted.  adaptree import FILE --trust {name}", quiet)


@group.command()
def remove(
    name: Annotated[str, typer.Argument(help="A key's name.")],
    force: Annotated[bool, typer.Option("--force", help="Even if it is your own: nobody can make it again.")] = False,
    store: shared.NoStore = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Remove a key."""
    signing.remove_key(name, force=force)
    say(f"removed {name}", quiet)
