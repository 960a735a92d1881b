"""Do something long in a process of its own, on one core, so that predictions keep their latency."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

from adaptree.errors import AdaptreeError, DataError, UsageError
from adaptree.serve.jobs.priority import step_back

NICE = 5
"""Somebody waits for it, so that it is only a little behind what answers requests."""


def elsewhere(function: Callable[..., Any], *given: Any, timeout: float, name: str) -> Any:
    """Return what a function of a module returns; raise its AdaptreeError, or DataError if it takes too long.

    `name` is what it works on, for errors. What is given and returned must be plain values.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_there, args=(theirs, function, given), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise DataError(f"'{name}' took longer than {timeout:.0f} s.", hint="Send fewer rows, and not packed.")
        done, found = ours.recv()
    except EOFError:
        raise DataError(f"'{name}' takes too much memory.", hint="Send fewer rows.") from None
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    if not done:
        about_data, what, hint = found
        raise (DataError if about_data else UsageError)(what, hint=hint)
    return found


def _there(pipe: Any, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    step_back(NICE)
    os.environ["OMP_NUM_THREADS"] = "1"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    try:
        pipe.send((True, function(*given)))
    except AdaptreeError as error:
        pipe.send((False, (isinstance(error, DataError), error.what, error.hint)))
    except MemoryError:
        pass
    finally:
        pipe.close()
