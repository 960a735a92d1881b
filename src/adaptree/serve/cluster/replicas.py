"""The replicas of a cluster as an application of Ray Serve: started, found, counted, and taken away."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from adaptree.errors import AdaptreeError, UsageError
from adaptree.serve.cluster.replica import EngineReplica, ReplicaPlace
from adaptree.training.work.cluster import connected

TARGET = 16
"""Requests under way of a replica at which Serve is content; with more it starts another, up to the most."""
MOST = 1024
"""Requests that a replica has under way at the most: its own queue says before that it is full."""
WAIT = 120.0
"""Seconds that replicas have to start."""
PATIENCE = 15.0
"""Seconds after which it is said what they wait for."""
LOOK = 0.2


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are to be, and what each of them needs."""

    least: int = 1
    most: int = 1
    cores: int = 1
    memory: int = 0

    @classmethod
    def parse(cls, text: str) -> tuple[int, int]:
        """Return the least and the most of '2' or '1-4'; raise UsageError for anything else."""
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip())
        least = int(found[1]) if found else 0
        most = int(found[2] or least) if found else 0
        if not 1 <= least <= most:
            raise UsageError(f"replicas must be a number or a span, not '{text}'.", hint="--replicas 2, or 1-4")
        return least, most


def name_of(place: ReplicaPlace) -> str:
    """Return the name of the application for a store and its base: the same for all servers over it."""
    mark = hashlib.sha256(f"{place.store}\0{place.fingerprint}".encode()).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9_.-]", "-", PurePath(place.store).name)
    return f"adaptree-{stem}-{mark}"


class Application:
    """The replicas over a store; `joined` says whether another server had started them."""

    def __init__(self, cluster: str, place: ReplicaPlace, replicas: Replicas, say: Callable[[str], None]) -> None:
        self._serve = _serve()
        self._ray = connected(cluster)
        self.name = name_of(place)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        until = time.monotonic() + WAIT
        while self._status() == "DELETING" and time.monotonic() < until:  # another server has just stopped
            time.sleep(LOOK)
        self.joined = self._status() in ("RUNNING", "DEPLOYING", "UNHEALTHY")
        try:
            if not self.joined:
                self._deploy(place, replicas)
            self._wait(replicas, until, say)
        except BaseException:
            if not self.joined:
                self.delete()
            raise
        self.handle = self._serve.get_app_handle(self.name)

    def _deploy(self, place: ReplicaPlace, replicas: Replicas) -> None:
        serve = self._serve
        needs: dict[str, Any] = {"num_cpus": replicas.cores, "memory": replicas.memory}
        if place.device.startswith("cuda"):
            needs["num_gpus"] = 1
        count: dict[str, Any] = {"num_replicas": replicas.least}
        if replicas.most > replicas.least:
            count = {
                "autoscaling_config": serve.config.AutoscalingConfig(
                    min_replicas=replicas.least, max_replicas=replicas.most, target_ongoing_requests=TARGET
                )
            }
        deployed = serve.deployment(
            name="engine",
            ray_actor_options=needs,
            max_ongoing_requests=MOST,
            max_queued_requests=MOST,
            max_constructor_retry_count=2,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
            request_router_config=serve.config.RequestRouterConfig(
                request_router_class="adaptree.serve.cluster.router:TaskRouter"
            ),
            **count,
        )(EngineReplica)
        target = serve.RunTarget(deployed.bind(place), name=self.name, route_prefix=None)
        serve.run_many([target], wait_for_applications_running=False)

    def _status(self) -> str:
        """Return what Serve says of the application; '' if there is none."""
        found = self._serve.status().applications.get(self.name)
        return "" if found is None else str(found.status.value)

    def _wait(self, replicas: Replicas, until: float, say: Callable[[str], None]) -> None:
        """Return when all replicas have started; raise an error of one line if they cannot."""
        patient = time.monotonic() + PATIENCE
        while (status := self._status()) != "RUNNING":
            if status == "DEPLOY_FAILED":
                raise AdaptreeError(f"the replicas could not start: {self._why()}", hint="ray status")
            if time.monotonic() > until:
                raise AdaptreeError(
                    f"the replicas did not start within {WAIT:.0f} s: {self._room(replicas)}",
                    hint="Ask for fewer --replicas, --threads or --memory, or add machines.",
                )
            if time.monotonic() > patient:
                say(f"waiting for the replicas to start: {self._room(replicas)}")
                patient = until + 1
            time.sleep(LOOK)

    def _room(self, replicas: Replicas) -> str:
        """Return a sentence about what the replicas need, and what the cluster has."""
        all_, free = self._ray.cluster_resources(), self._ray.available_resources()
        wanted = f"{replicas.least} of {_count(replicas.cores, 'core')} and {replicas.memory / 1e9:.1f} GB each"
        return (
            f"{wanted}; the cluster has {_count(int(all_.get('CPU', 0)), 'core')} and {all_.get('memory', 0) / 1e9:.1f}"
            f" GB, of which {int(free.get('CPU', 0))} and {free.get('memory', 0) / 1e9:.1f} GB are free."
        )

    def _why(self) -> str:
        """Return the line with the error in what Serve says of replicas that failed."""
        found = self._serve.status().applications[self.name]
        said = [found.message, *(each.message for each in found.deployments.values())]
        lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
        ours = [line.partition(": ")[2] for line in lines if re.match(r"[\w.]*adaptree[\w.]*: ", line)]
        errors = ours or [line for line in lines if "Error" in line] or lines or ["Serve does not say why."]
        return str(errors[-1])

    def delete(self) -> None:
        """Take the application away."""
        with contextlib.suppress(Exception):  # the cluster is gone, and the replicas with it
            self._serve.delete(self.name, _blocking=False)  # whoever comes next waits for it


def _serve() -> Any:
    """Return the module `ray.serve`; raise UsageError if it is not installed."""
    try:
        from ray import serve
    except ImportError:
        raise UsageError("serving on a cluster needs Ray Serve.", hint="pip install 'adaptree[cluster]'") from None
    return serve


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
