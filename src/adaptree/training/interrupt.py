"""Ctrl-C in a run: the step that is under way ends first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the step that is under way end, so that what is kept is whole; a second one stops at once."""
    hits: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: FrameType | None) -> None:
        hits.append(number)
        if len(hits) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: bool(hits)
    finally:
        signal.signal(signal.SIGINT, before)
