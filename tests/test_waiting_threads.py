"""How torch's threads wait for each other is set before torch is loaded, by what else runs on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
LINUX = pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="only Linux says which processes are running")


def waiting(**own: str) -> dict[str, str]:
    """The settings that a new process has after `import adaptree`."""
    code = f"import json, os, adaptree; print(json.dumps({{k: os.environ[k] for k in {OURS!r} if k in os.environ}}))"
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run([sys.executable, "-c", code], env=clean | own, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("own", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_a_users_own_setting_wins(own: dict[str, str]) -> None:
    assert waiting(**own) == own


def test_threads_sleep_or_spin_shortly() -> None:
    assert waiting() in ({"OMP_WAIT_POLICY": "PASSIVE"}, {"GOMP_SPINCOUNT": "3000"})


@LINUX
def test_threads_sleep_where_other_work_keeps_the_cores_busy() -> None:
    work = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.5)
        assert waiting() == {"OMP_WAIT_POLICY": "PASSIVE"}
    finally:
        for process in work:
            process.kill()
            process.wait()
