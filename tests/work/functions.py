"""Functions that the tests of executors call in other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from adaptree.data.events import Listener
from adaptree.errors import DataError
from adaptree.training.work.interrupt import ctrl_c


def double(number: int, on_event: Listener) -> int:
    on_event({"event": "note", "text": f"doubling {number}"})
    return 2 * number


def count(number: int, on_event: Listener) -> None:
    for n in range(number):
        on_event({"event": "note", "text": str(n)})


def fail(on_event: Listener) -> None:
    raise DataError("a row is wrong.", hint="Correct it.")


def break_down(on_event: Listener) -> None:
    raise ZeroDivisionError("by nothing")


def read(files: dict[str, Path], on_event: Listener) -> dict[str, Any]:
    return {
        name: path.read_text()
        if path.is_file()
        else sorted((file.name, file.read_text()) for file in path.rglob("*.txt"))
        for name, path in files.items()
    }


def where(path: Path, on_event: Listener) -> str:
    return str(path)


def die_once(mark: str, on_event: Listener) -> str:
    """Kill the process at the first call; the mark is a file that outlives it."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die(on_event: Listener) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait(mark: str, on_event: Listener) -> str:
    """Go on until Ctrl-C."""
    with ctrl_c() as pressed:
        Path(mark).touch()
        while not pressed():
            time.sleep(0.02)
    return "ended in good order"
