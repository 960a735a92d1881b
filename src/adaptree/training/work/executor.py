"""The interface of an executor, and the simplest one: this process itself, one call after another."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from adaptree.data.events import Event, Listener
from adaptree.errors import AdaptreeError, UsageError
from adaptree.training.work.interrupt import ctrl_c

CallListener = Callable[[str, Event], None]
"""A function of a call's key and an event that the call has sent."""
TRIES = 2
"""How often a call is begun whose process is killed or whose machine is lost."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, which can be sent to another process: `function(*arguments, on_event)`.

    The function is found there by its name, so it is neither a lambda nor inside of another function. A `Path` in the
    arguments is a file or a folder to read: another machine gets a copy of it. A path that is a str stays as it is.
    """

    key: str
    """Names the call among those of an executor."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cores: int = 1
    memory: int | None = None
    """Bytes that it needs, if that is known."""


@dataclass(frozen=True)
class Outcome:
    """How a call has ended: with a value, with an error, or `stopped` by Ctrl-C before it was done."""

    key: str
    value: Any = None
    error: str = ""
    expected: bool = True
    """Whether the error is an AdaptreeError, which is to be read by a person."""
    stopped: bool = False
    trace: str = ""


class Executor(ABC):
    """Carries out calls. Every call that is submitted has one outcome, in any order."""

    here: ClassVar[bool] = False
    """Whether calls are made in this very process, so that they may have anything as arguments."""
    sends_files: ClassVar[bool] = False
    """Whether calls are made on other machines, which get copies of the files among their arguments."""

    @abstractmethod
    def submit(self, call: Call) -> None:
        """Take on a call, without waiting for it."""

    @abstractmethod
    def outcomes(self, timeout: float) -> list[Outcome]:
        """Return the outcomes since the last call; wait for the first of them, but not longer than `timeout` seconds.

        One that works in this process returns when a call is done.
        """

    @abstractmethod
    def stop(self) -> None:
        """Begin no more calls, and have those under way end at their next step."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; calls that are still under way are lost."""


class InThisProcess(Executor):
    """Carries out the calls itself, one with each call of `outcomes`."""

    here = True

    def __init__(self, on_event: CallListener) -> None:
        self._on_event = on_event
        self._waiting: deque[Call] = deque()
        self._stopped = False

    def submit(self, call: Call) -> None:
        self._waiting.append(call)

    def outcomes(self, timeout: float) -> list[Outcome]:
        if not self._waiting:
            return []
        if self._stopped:
            dropped = [Outcome(call.key, stopped=True) for call in self._waiting]
            self._waiting.clear()
            return dropped
        call = self._waiting.popleft()
        return [carry_out(call, lambda event: self._on_event(call.key, event))]

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._waiting.clear()


def carry_out(call: Call, on_event: Listener) -> Outcome:
    """Make a call and return its outcome; a first Ctrl-C is for the function, a second one stops the call."""
    try:
        with ctrl_c():
            return Outcome(call.key, call.function(*call.arguments, on_event))
    except KeyboardInterrupt:
        return Outcome(call.key, stopped=True)
    except AdaptreeError as error:
        return Outcome(call.key, error=str(error), trace=traceback.format_exc())
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"unexpected {type(error).__name__}: {first}"
        return Outcome(call.key, error=why, expected=False, trace=traceback.format_exc())


def executor_for(cluster: str | None, jobs: int, on_event: CallListener) -> Executor:
    """Return the executor that `--cluster` and `--jobs` ask for; raise UsageError for a cluster that cannot be."""
    if cluster is not None:
        from adaptree.training.work.cluster import RayCluster

        return RayCluster(cluster, on_event)
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {jobs}.", hint="--jobs 2")
    if jobs == 1:
        return InThisProcess(on_event)
    from adaptree.training.work.processes import LocalProcesses

    return LocalProcesses(on_event, jobs)
