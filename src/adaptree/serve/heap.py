"""How the process takes memory from the system, and gives it back.

Tasks come and go in several threads, with tensors of all sizes. glibc gives each thread a heap of its own, whose free
memory the others do not use, and keeps what is freed in the midst of a heap: so a server would grow for long after its
tasks have filled their budget. Elsewhere than on glibc, these functions do nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress

_ARENA_MAX = -8
"""glibc's M_ARENA_MAX."""


def share_heap() -> None:
    """Let all threads that start from now on take memory from one heap; the user's MALLOC_ARENA_MAX counts before."""
    if not os.environ.get("MALLOC_ARENA_MAX"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Give the system all whole pages that were freed; it takes a millisecond for every ten megabytes of them."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def set_aside() -> None:
    """Let the garbage collector look no more at what there is by now: the modules and the base, which stay.

    They are about a million objects, and to go through all of them stops a server for nearly half a second.
    """
    gc.collect()
    gc.freeze()
