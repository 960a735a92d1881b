"""Ctrl-C in a run: the first press ends it after the current step, the second one at once, and neither tears a step.

In a thread that is not the main one there is no Ctrl-C, but `press` ends a run there, too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class _Presses:
    """A signal handler that remembers the first press, and raises KeyboardInterrupt at the second."""

    def __init__(self) -> None:
        self.count = 0
        self.held = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1 and not self.held:
            raise KeyboardInterrupt

    def pressed(self) -> bool:
        return self.count > 0


_own = threading.local()
"""The presses of a thread that is not the main one."""


def _current() -> _Presses | None:
    """Return the presses of the innermost `ctrl_c` of this thread."""
    if threading.current_thread() is threading.main_thread():
        found = signal.getsignal(signal.SIGINT)
        return found if isinstance(found, _Presses) else None
    return getattr(_own, "presses", None)


def press(*, at_once: bool = False) -> None:
    """End the run of this thread as a Ctrl-C would: after the current step, or `at_once` as a second press."""
    if (presses := _current()) is not None:
        presses.count = max(presses.count, 1)
        if at_once:
            presses(0, None)


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, so that a run can end between two steps.

    A second press raises KeyboardInterrupt at once, but not where it is `shielded`. A `ctrl_c` inside another shares
    its presses, so that one during the last trial of a search also ends the search.
    """
    if (outer := _current()) is not None:
        yield outer.pressed
        return
    presses = _Presses()
    if threading.current_thread() is not threading.main_thread():
        _own.presses = presses
        try:
            yield presses.pressed
        finally:
            del _own.presses
        return
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, presses)
    try:
        yield presses.pressed
    finally:
        signal.signal(signal.SIGINT, before)


def pressed_twice() -> bool:
    """Return whether Ctrl-C was pressed a second time, inside a `ctrl_c`."""
    presses = _current()
    return presses is not None and presses.count > 1


def shielded() -> contextlib.AbstractContextManager[None]:
    """Hold a second press back in a `with` block, whose work is done as a whole, until the next `interruptible` one."""
    return _holding(True)


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Let a second press end a `with` block at once, also inside `shielded`: what it computes may be thrown away.

    One that was held back raises KeyboardInterrupt as the block begins.
    """
    return _holding(False)


@contextlib.contextmanager
def _holding(held: bool) -> Iterator[None]:
    presses = _current()
    if presses is None:
        yield
        return
    before, presses.held = presses.held, held
    try:
        if presses.count > 1 and not held:
            raise KeyboardInterrupt
        yield
    finally:
        presses.held = before
