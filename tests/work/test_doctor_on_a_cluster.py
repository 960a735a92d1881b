"""`adaptree doctor --cluster` asks every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.doctor import doctor
from adaptree.tasks.store import Store
from tests.bases import tiny_base


@pytest.mark.slow
def test_every_node_says_its_versions_and_its_base(ray_cluster: Any, tmp_path: Path) -> None:
    base = str(tiny_base(tmp_path / "tiny"))
    nodes = [check for check in doctor(Store(tmp_path), base=base, cluster="ray") if check.name.startswith("node ")]
    assert len(nodes) == 2
    assert all(check.ok for check in nodes)
