"""Ctrl-C in a run: the step that is under way ends first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class _Presses:
    """A handler that counts: the first press is remembered, a second one stops at once."""

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
    """Ctrl-C lets the step that is under way end, so that what is kept is whole; a second one stops at once.

    Inside another `ctrl_c` the presses are that one's: none is lost when a run of several ends.
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
