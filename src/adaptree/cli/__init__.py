"""The command line: thin skins over api.py. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import os
import sys
import traceback


def main(argv: list[str] | None = None) -> int:
    """Run one command: 0 done, 1 could not, 2 wrong usage; one line says what, why and what to do."""
    args = sys.argv[1:] if argv is None else argv
    try:
        return _run(args)
    except KeyboardInterrupt:
        _complain("stopped.")
        return 1


def _run(args: list[str]) -> int:
    import click

    from adaptree.cli.app import app
    from adaptree.errors import AdaptreeError

    try:
        code = app(args=args, prog_name="adaptree", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "adaptree"
        _complain(f"{error.format_message()}  {where} --help")
        return 2
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("stopped.")
        return 1
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except AdaptreeError as error:
        if "--debug" in args:
            traceback.print_exc()
        _complain(str(error))
        return error.exit_code
    except OSError as error:
        if "--debug" in args:
            traceback.print_exc()
        where = f" '{error.filename}'" if error.filename else ""
        _complain(f"{error.strerror or error}{where}.")
        return 1
    except Exception as error:
        if "--debug" in args:
            traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        _complain(f"unexpected {type(error).__name__}: {first}  Run it again with --debug and report what it prints.")
        return 1


def _complain(line: str) -> None:
    print(f"✘ {line}", file=sys.stderr)
