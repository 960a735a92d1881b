"""A real PostgreSQL server on this machine, for tests: it listens on the loopback alone and forgets everything."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl; None where there is no PostgreSQL."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    found = [*installed, *([Path(on_path).resolve()] if on_path else [])]
    return found[0].parent if found else None


def why_not() -> str:
    """Return why no server can be started here; '' if one can."""
    if programs() is None:
        return "PostgreSQL is not installed"
    return "" if os.geteuid() or (_user() and shutil.which("runuser")) else "PostgreSQL refuses to run as root"


@contextmanager
def server() -> Iterator[str]:
    """Run a server; yield its URL."""
    bin_ = programs()
    assert bin_ is not None
    user = _user() if os.geteuid() == 0 else ""
    as_user = ["runuser", "-u", user, "--"] if user else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="adaptree-postgres-") as folder:
        if user:
            shutil.chown(folder, user)
        data, log = f"{folder}/data", f"{folder}/log"
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
        subprocess.run([*as_user, bin_ / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync"], **quiet)
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
        start = [*as_user, bin_ / "pg_ctl", "-D", data, "-l", log, "-w", "-o", settings, "start"]
        subprocess.run(start, **quiet)
        try:
            yield f"postgresql://tester:secret@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*as_user, bin_ / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], **quiet)


def _user() -> str:
    """Return the user that PostgreSQL's package made, whom it may run as; '' if there is none."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return ""
