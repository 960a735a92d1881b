"""Which replica is asked for a task: always the same ones, so that each task is in the memory of few.

Rendezvous hashing orders the replicas for each task, in its own way; consistent hashing with bounded loads (Mirrokni et
al. 2018, arXiv:1608.01350) passes over one that has more than its share under way. Every server comes to the same order
by itself, and a replica that comes or goes changes the place of its own tasks alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

FACTOR = 1.25
"""How many times the mean of the requests under way a replica may have, before others are asked for its tasks."""
FEW = 8
"""Requests that are no load for a replica: it computes them together."""


class TaskRouter(RequestRouter):  # type: ignore[misc]
    """Serve's router, with our order of the replicas; the first argument of a call is the task's name."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which they are asked; Serve takes the first that accepts the request."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # while all are full, wait longer and longer
        by_id = {each.replica_id.unique_id: each for each in candidate_replicas}
        under_way = self.replica_queue_len_cache
        loads = {id: under_way.get(each.replica_id) or 0 for id, each in by_id.items()}
        return [[by_id[id]] for id in in_order(pending_request.args[0], loads)]


def in_order(task: str, loads: Mapping[str, int]) -> list[str]:
    """Return replicas in the order in which they are asked for a task, from how many requests each has under way."""
    name = task if "(" in task else task.partition("@")[0]  # all versions of a task have one place

    def place(replica: str) -> bytes:
        return hashlib.blake2b(f"{name}\0{replica}".encode(), digest_size=8).digest()

    bound = max(FEW, math.ceil(FACTOR * (sum(loads.values()) + 1) / max(1, len(loads))))
    return sorted(loads, key=lambda replica: (loads[replica] >= bound, place(replica)))
