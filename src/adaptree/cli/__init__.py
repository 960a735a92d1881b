"""The command line: each command is a thin layer over a function of api.py. torch is imported only when needed."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
import warnings
from types import FrameType
from typing import Any


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage; an error is one line on stderr."""
    args = sys.argv[1:] if argv is None else argv
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a letter that the terminal's encoding lacks is spelled out
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            if {"--quiet", "-q"} & set(args):
                warnings.simplefilter("ignore")
            return _run(args)
    except KeyboardInterrupt:
        _complain("stopped.")
        return 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; in the middle of an import, end the process at once.

    An exception within the import of torch can crash the interpreter, and at that moment there is nothing to lose.
    """
    inside = frame
    while inside is not None:
        if inside.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, "✘ stopped.\n".encode(sys.stderr.encoding or "utf-8", "backslashreplace"))
            os._exit(1)
        inside = inside.f_back
    raise KeyboardInterrupt


def _run(args: list[str]) -> int:
    import typer

    from adaptree.cli.app import app
    from adaptree.errors import AdaptreeError, UnknownArchitecture, out_of_memory

    # typer carries a click of its own, or uses the installed one: its classes are found through what it exports.
    classes: Any = typer.BadParameter.__mro__
    misuse, complaint = classes[1:3]
    try:
        code = app(args=args, prog_name="adaptree", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except misuse as error:
        context = getattr(error, "ctx", None)
        _complain(f"{error.format_message()}  {context.command_path if context else 'adaptree'} --help")
        return 2
    except complaint as error:
        _complain(error.format_message())
        return 1
    except (typer.Abort, KeyboardInterrupt):
        _complain("stopped.")
        return 1
    except (BrokenPipeError, SystemExit):  # the reader of our output has gone, as with `| head`; typer exits for that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except AdaptreeError as error:
        if "--debug" in args:
            _trace()
        first, *sketch = str(error).split("\n") if isinstance(error, UnknownArchitecture) else [str(error)]
        _complain(first, *sketch)
        return error.exit_code
    except OSError as error:
        if "--debug" in args:
            _trace()
        where = f" '{error.filename}'" if error.filename else ""
        _complain(f"{error.strerror or error}{where}.")
        return 1
    except Exception as error:
        if "--debug" in args:
            _trace()
        if out_of_memory(error):
            _complain("there is not enough memory.  Close other programs, or take a smaller --base or shorter texts.")
            return 1
        first = (str(error).strip().splitlines() or [""])[0]
        _complain(f"unexpected {type(error).__name__}: {first}  Run it again with --debug and report what it prints.")
        return 1


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning as one line, without the place in the code that it comes from."""
    from adaptree.cli.show import say

    say(f"note: {message}")


def _complain(line: str, *more: str) -> None:
    """Print an error on one line; that of an unknown architecture has lines of code to write, too."""
    from adaptree.cli.show import say

    for each in (f"✘ {line}", *more):
        say(each)


def _trace() -> None:
    """Print the traceback of the error that is handled."""
    from adaptree.cli.show import say

    for line in traceback.format_exc().splitlines():
        say(line)
