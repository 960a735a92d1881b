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

    cluster = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
