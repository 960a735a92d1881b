"""What to type when a run needs more memory than there is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from adaptree.errors import TrainingError, out_of_memory
from adaptree.training import checkpoint
from adaptree.training.fast import MOST_TOKENS
from adaptree.training.settings import Settings


@contextlib.contextmanager
def explained(settings: Settings, folder: Path | None) -> Iterator[None]:
    """Raise TrainingError with the options that help if a `with` block runs out of memory.

    `folder` is where the run keeps its checkpoint: what is there is told too.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        what, hint = "there is not enough memory for this run.", f"What helps: {_options(settings)}."
        if folder is not None and (kept := checkpoint.kept(folder)):
            what = f"{what[:-1]}; {kept} is kept."
            hint += f" With --resume --accumulate {2 * settings.accumulate} it goes on where it was."
        raise TrainingError(what, hint=hint) from error


def _options(settings: Settings) -> str:
    """Return the options that need less memory, those that change the task least first."""
    tokens = min(settings.most_tokens or 2 * MOST_TOKENS, 2 * MOST_TOKENS) // 2
    longest = max(8, (settings.max_length or 256) // 2)
    smaller = f", --batch-size {settings.batch_size // 2}" if settings.batch_size > 1 else ""
    return (
        f"--accumulate {2 * settings.accumulate} or --most-tokens {max(1, tokens)} (the same steps in smaller parts), "
        f"--max-length {longest}{smaller}, --fast, --layers top:2"
    )
