"""A real Ray cluster of two machines, each a raylet of its own with one core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """The cluster, connected: `add_node` and `remove_node` change it."""
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
