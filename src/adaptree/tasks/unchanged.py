"""Whether files are still as they were when they were read, from their inode and times and not from their bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

YOUNG = 2.0
"""Seconds. A file that changed so shortly before it was looked at may change again, and its times stay the same."""


def seen(files: Iterable[str]) -> str:
    """Return the name, inode, size and time of change of files; '' if a later change might not show in them.

    The time of change (ctime) is the system's: unlike the time of modification, no program can set it back. Windows has
    none.
    """
    if os.name == "nt":
        return ""
    latest = time.time() - YOUNG
    found = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append("-")
            continue
        if status.st_ctime > latest:
            return ""
        found.append(f"{os.path.basename(file)} {status.st_ino} {status.st_size} {status.st_ctime_ns}")
    return ", ".join(found)
