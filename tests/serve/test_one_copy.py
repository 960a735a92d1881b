"""Several processes have one copy of the base's weights in memory: the pages of its file."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import adaptree as at
base = at.load_base()
base.features(["the old lion"] * 4)
print(open("/proc/self/smaps").read())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="memory is read from /proc")
def test_the_base_s_weights_are_pages_of_its_file_that_processes_share() -> None:
    text = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^[^\n]*model\.safetensors\n(?:[^\n]*\n)*?VmFlags", text, re.MULTILINE)
    assert found
    sizes = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", found[0], re.MULTILINE)}
    assert sizes["Size"] > 80_000
    assert sizes["Rss"] > 30_000
    assert sizes["Private_Dirty"] == 0, "no page was copied for this process"
