"""A real browser for the tests: Debian's Chromium, headless and without the network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needed = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


def dom(page: Path, profile: Path, milliseconds: int = 4000) -> str:
    """A page's elements after its scripts have run, with no host that can be reached."""
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND"
    command = [str(CHROMIUM), *FLAGS, nowhere, f"--user-data-dir={profile}", f"--virtual-time-budget={milliseconds}"]
    done = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout
