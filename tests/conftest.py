"""What all tests share: one thread, so that bits and times do not depend on the machine's other work."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Set before torch is imported, and inherited by the commands that tests start; CI may say otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("adaptree", deadline=None)
settings.load_profile("adaptree")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A comparison's cells run in this process, which is fast; their methods are listed as they run."""
    from adaptree.analysis.compare import cells

    found: list[str] = []

    def run(path: Path) -> None:
        found.append(json.loads(path.read_text())["asked"]["method"])
        cells.run_cell(path)

    monkeypatch.setattr(cells, "_run", run)
    return found


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save tasks without drawing their figures, which takes longer than to train on a tiny base.

    Tests of the figures themselves carry the mark `figures`; commands in processes of their own draw always.
    """
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("adaptree.reports.figures.figures", lambda record: {})


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A real Ray cluster of two machines, each a raylet of its own with one core, that is connected.

    `add_node` and `remove_node` change it.
    """
    utilities = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'adaptree[cluster]'")
    import ray

    cluster = utilities.Cluster()
    for options in ({"include_dashboard": False}, {}):
        for tries_left in (2, 1, 0):
            try:
                cluster.add_node(num_cpus=1, **options)
                break
            except Exception as error:  # Ray gives a node 30 seconds to start, which a busy machine may need
                if not tries_left or "timed out during startup" not in str(error):
                    raise
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
