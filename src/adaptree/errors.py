"""Every error that a user can meet: what happened, why, and what to type next.

::

    AdaptreeError                 something failed (exit 1)
    ├── UsageError                an option or argument that cannot work (exit 2)
    │   ├── MethodError           a method's spelling, or a number in it
    │   ├── CompositionError      tasks that have no meaning together
    │   └── BadName               a task's name
    ├── DataError                 a data file, or a row of it
    ├── BaseError                 the pretrained model
    │   ├── UnknownArchitecture   not in the table of sites
    │   └── WrongBase             a task trained on another base
    ├── TaskNotFound              no such task, or no such version
    ├── TaskCorrupt               a task's files are damaged
    ├── StoreError                the store cannot be read or written
    │   ├── VersionTaken          a version's number that another one has
    │   └── Unreachable           a store behind a URL does not answer, or refuses
    ├── BundleError               an exported file that cannot be read or trusted
    ├── ServerError               what a server answered (`adaptree.client`)
    ├── InteropError              a task of another library, or one of ours that it has no form for
    └── TrainingError             a run that cannot start, go on, or be resumed
        ├── CannotResume          its checkpoint is damaged, or of other data or settings
        └── Diverged              its loss is not a number any more
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable
from typing import Any


class AdaptreeError(Exception):
    """What happened and why; `hint` is what to do next, typed as the user would type it."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}  {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(AdaptreeError):
    exit_code = 2


class MethodError(UsageError):
    pass


class CompositionError(UsageError):
    pass


class BadName(UsageError):
    pass


class DataError(AdaptreeError):
    pass


class BaseError(AdaptreeError):
    pass


class UnknownArchitecture(BaseError):
    pass


class WrongBase(BaseError):
    pass


class TaskNotFound(AdaptreeError):
    pass


class TaskCorrupt(AdaptreeError):
    pass


class StoreError(AdaptreeError):
    pass


class VersionTaken(StoreError):
    pass


class Unreachable(StoreError):
    pass


class BundleError(AdaptreeError):
    pass


class InteropError(AdaptreeError):
    pass


class TrainingError(AdaptreeError):
    pass


class CannotResume(TrainingError):
    pass


class Diverged(TrainingError):
    pass


NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "bad_alloc", "bad allocation")
"""What torch's errors say where memory is missing, which on a processor are plain RuntimeErrors."""


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python, numpy or torch says that there is no memory left."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in NO_MEMORY)


def near(name: str, choices: Iterable[str]) -> str:
    """Return "Did you mean '…'?" for a mistyped name, or '' when no choice is close."""
    by_fold = {choice.casefold(): choice for choice in choices}
    hits = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return f"Did you mean '{by_fold[hits[0]]}'?" if hits else ""
