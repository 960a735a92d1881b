"""The application that all commands register with, and the options that are not those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptree import __version__
from adaptree.cli.show import Format

app = typer.Typer(
    name="adaptree",
    help="One frozen pretrained Transformer, a thin trained layer per task.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Where tasks are kept. Default: $ADAPTREE_STORE, else ~/.adaptree.")
]
NoStore = Annotated[Path | None, typer.Option("--store", hidden=True, help="Every command takes it; not needed here.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How results are printed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="Compute the base in int8: about twice as fast; an error if predictions change.")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adaptree {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


from adaptree.cli import (  # noqa: E402, F401  # each adds its commands
    check,
    compare,
    compose,
    demo,
    evaluate,
    experiment,
    explain,
    methods,
    predict,
    rebase,
    suggest,
    tasks,
    train,
)
