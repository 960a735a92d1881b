"""Work on the versions of a store, here or in shards elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Listener
from adaptree.errors import StoreError, UsageError
from adaptree.training.work.executor import Call, executor_for
from adaptree.training.work.interrupt import ctrl_c
from adaptree.training.work.shared_store import check_known, known, place_of

if TYPE_CHECKING:
    from adaptree.tasks.store import Store

LOOK = 0.2
"""Seconds from one look at what runs to the next."""


@dataclass(frozen=True)
class Spread:
    """Where functions of a store are called: in this process, in `jobs` processes, or on a `cluster`."""

    store: Store
    jobs: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {self.jobs}.", hint="--jobs 2")

    @property
    def here(self) -> bool:
        return self.cluster is None and self.jobs == 1

    def shards(self, references: Sequence[str], most: int) -> list[Sequence[str]]:
        """Return references in parts of at most so many, and smaller ones where there are few; here in one."""
        if self.here:
            return [references]
        size = max(1, min(most, -(-len(references) // max(self.jobs, 8))))
        return [references[i : i + size] for i in range(0, len(references), size)]

    def do(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], on_event: Listener) -> list[Any]:
        """Return what `function(store, *arguments, on_event)` returns for each of the arguments, in their order.

        Raise StoreError if it fails elsewhere, and KeyboardInterrupt after Ctrl-C.
        """
        if self.here:
            return [function(self.store, *each, on_event) for each in arguments]
        executor = executor_for(self.cluster, self.jobs, lambda key, event: on_event(event))
        found: dict[int, Any] = {}
        with contextlib.closing(executor), known(self.store, executor) as mark, ctrl_c() as pressed:
            for number, each in enumerate(arguments):
                executor.submit(Call(str(number), in_store, (function, place_of(self.store), mark, each)))
            while len(found) < len(arguments):
                for outcome in executor.outcomes(LOOK):
                    if outcome.stopped:
                        raise KeyboardInterrupt
                    if outcome.error:
                        raise StoreError(outcome.error)
                    found[int(outcome.key)] = outcome.value
                if pressed():
                    raise KeyboardInterrupt
        return [found[number] for number in range(len(arguments))]


def in_store(
    function: Callable[..., Any], location: str, mark: str, arguments: tuple[Any, ...], on_event: Listener
) -> Any:
    """Call a function of a store in this process, which opens the store itself."""
    from adaptree.tasks.store import Store

    store = Store(location)
    check_known(store, mark)
    return function(store, *arguments, on_event)
