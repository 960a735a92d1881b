"""All commands, and the options that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptree import __version__

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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, show where it comes from.")]
Encoding = Annotated[str, typer.Option(help="How the file spells its characters, e.g. latin-1.")]
Text = Annotated[str | None, typer.Option("--text", help="Column with the text. Default: guessed.")]
TextPair = Annotated[str | None, typer.Option("--text-pair", help="Column with the second text of a pair.")]
Label = Annotated[str | None, typer.Option("--label", help="Column with the label. Default: guessed.")]
BaseOption = Annotated[
    str | None, typer.Option("--base", help="minilm (embedded), mpnet, a folder, or a name on the Hugging Face hub.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads. Same number, same bits.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="Compute the base in whole numbers: about twice as quick; refused when it hurts.")
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that a base brings along.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read a base's weights from a pickle too.")]


def _version(asked: bool) -> None:
    if asked:
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
