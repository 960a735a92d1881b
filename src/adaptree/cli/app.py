"""The application that all commands register with, and the options that are not those of a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptree import __version__
from adaptree.cli.show import Format
from adaptree.errors import AdaptreeError

app = typer.Typer(
    name="adaptree",
    help="One frozen pretrained Transformer, a thin trained layer per task.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="Where tasks are kept: a folder, or a URL (s3://…). Default: $ADAPTREE_STORE, else ~/.adaptree."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(metavar="ray|ray://HOST:PORT", help="Work on a Ray cluster: this machine's, or the one there."),
]
NoStore = Annotated[str | None, typer.Option("--store", hidden=True, help="Every command takes it; not needed here.")]
IndexOption = Annotated[
    str | None,
    typer.Option(
        "--index",
        help="A database that keeps what is listed: postgresql://… Default: $ADAPTREE_INDEX, else a file in the cache.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How results are printed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]
Int8 = Annotated[
    bool,
    typer.Option(
        "--int8",
        help="Compute the base in int8: about twice as fast. The first 256 predictions are compared with fp32, and it "
        "is an error if more than 2 % of them differ.",
    ),
]

WELCOME = f"""\
adaptree {__version__}: one frozen pretrained Transformer, a thin trained layer per task.

Begin with a file of labelled text (csv, tsv, jsonl, …):

  adaptree check reviews.csv                    what is in it, and what looks wrong
  adaptree train reviews.csv --name reviews     train a task on it
  adaptree predict reviews "great phone"        use the task

No file at hand?      adaptree demo                    two tasks in a few minutes, offline
No terminal, please:  adaptree app                     all of it on pages in the browser
All commands:         adaptree --help
Options of one:       adaptree train --help
Completion with Tab:  adaptree --install-completion
"""


def stored_tasks(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of stored tasks that complete a word, as a shell asks; only the store's folders are read."""
    from adaptree.tasks.store import Store

    try:
        return [name for name in Store(context.params.get("store")).names() if name.startswith(incomplete)]
    except AdaptreeError:
        return []


def task_argument(help: str) -> Any:
    """Return the argument that names a task, which a shell completes."""
    return typer.Argument(help=help, autocompletion=stored_tasks)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adaptree {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(WELCOME, nl=False)


from adaptree.cli import (  # noqa: E402, F401  # each adds its commands
    ablate,
    api_keys,
    app_command,
    bases,
    check,
    clean,
    compare,
    compose,
    demo,
    doctor,
    evaluate,
    experiment,
    explain,
    export,
    import_,
    improve,
    keys,
    methods,
    predict,
    rebase,
    report,
    search,
    serve,
    site,
    stream,
    suggest,
    tasks,
    train,
    transfer,
    verify,
    versions,
    worker,
)
