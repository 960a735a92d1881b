"""Ctrl-C in a run: the first press ends it after the current step, the second one at once, and neither tears a step."""

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


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, so that a run can end between two steps.

    A second press raises KeyboardInterrupt at once, but not where it is `shielded`. A `ctrl_c` inside another shares
    its presses, so that one during the last trial of a search also ends the search.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, _Presses):
        yield before.pressed
        return
    presses = _Presses()
    signal.signal(signal.SIGINT, presses)
    try:
        yield presses.pressed
    finally:
        signal.signal(signal.SIGINT, before)


def pressed_twice() -> bool:
    """Return whether Ctrl-C was pressed a second time, inside a `ctrl_c`."""
    presses = signal.getsignal(signal.SIGINT)
    return isinstance(presses, _Presses) and presses.count > 1


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
    presses = signal.getsignal(signal.SIGINT)
    if not isinstance(presses, _Presses) or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, presses.held = presses.held, held
    try:
        if presses.count > 1 and not held:
            raise KeyboardInterrupt
        yield
    finally:
        presses.held = before
