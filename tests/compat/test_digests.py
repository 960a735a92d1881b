"""Training gives the same weights as it did when the digests were written, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.asking import machine

HERE = Path(__file__).parent


@pytest.mark.slow
def test_fifty_eight_trainings_give_the_same_weights_and_records(tmp_path: Path) -> None:
    before = json.loads((HERE / "digests-0.1.json").read_text())["machine"]
    here = {**machine(), "threads": 1}
    if here != before:
        pytest.skip(f"the digests are of another machine: {before}, and this one is {here}")
    command = [sys.executable, str(HERE / "digests.py"), str(tmp_path / "now.json")]
    done = subprocess.run(
        [*command, "--against", str(HERE / "digests-0.1.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
