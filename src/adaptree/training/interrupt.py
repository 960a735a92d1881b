"""Ctrl-C in a run: the current step ends first."""

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

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def pressed(self) -> bool:
        return self.count > 0


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, so that a run can end between two steps.

    A second press raises KeyboardInterrupt at once. A `ctrl_c` inside another shares its presses, so that one during
    the last trial of a search also ends the search.
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
