"""What the commands that train share: options, and what they say of a run that was stopped or is done."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptree.cli.show import say
from adaptree.errors import TrainingError

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Kind = Annotated[
    str | None, typer.Option(help="classify, regress, tag, answer, choose or mlm. Default: guessed from the file.")
]
Validation = Annotated[str | None, typer.Option(help="Validation file. Default: a fifth of the data.")]
Test = Annotated[str | None, typer.Option(help="Test file, scored once at the end.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data. Default: 20 on few rows to 4 on many.")]
Lr = Annotated[float | None, typer.Option(help="Peak learning rate. Default: the method's.")]
MaxLength = Annotated[int | None, typer.Option(help="Longest text in tokens. Default: 256.")]
MaxSteps = Annotated[int | None, typer.Option(help="Stop after this many batches.")]
Metric = Annotated[
    str | None,
    typer.Option(help="What chooses the best epoch. Default: the kind's own: accuracy, pearson, f1 or perplexity."),
]
Pooling = Annotated[str | None, typer.Option(help="mean, first or last. Default: as the base was pretrained.")]
ClassWeights = Annotated[bool, typer.Option("--class-weights", help="Give rare labels the same say.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped or killed.")]


def again() -> str:
    """The command that goes on with this run."""
    return shlex.join(["adaptree", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Where Ctrl-C leaves something in a run's folder, say how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        if not any(folder.glob("*.safetensors")) and not (folder / "search.jsonl").exists():
            raise
        raise TrainingError("stopped; what was trained so far is kept.", hint=f"Go on with: {again()}") from None


def tell_end(records: Sequence[Record], quiet: bool) -> int:
    """Say what is to be known of a run's tasks beside their scores; the command's exit code."""
    for record in records:
        if record.version > 1:
            told = f"'{record.name}' was there before: this is version {record.version}, the older ones are kept."
            say(told, quiet)
    settings = records[0].settings
    if settings.get("finished", True):
        return 0
    say(f"✘ stopped: the best so far (epoch {settings['best_epoch']}) is kept.  Go on with: {again()}")
    return 1
