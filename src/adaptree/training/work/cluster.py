"""Calls on a Ray cluster: on this machine, or on those of the cluster at an address.

Each call is a Ray task that asks for its cores and memory. The files that it reads travel through Ray's object store
and are unpacked once on each machine. A call whose worker or machine is lost is made again elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from importlib.metadata import version
from typing import Any

from adaptree.data.events import Event
from adaptree.errors import TrainingError, UsageError
from adaptree.training.work.executor import TRIES, Call, CallListener, Executor, Outcome, carry_out
from adaptree.training.work.parcels import Sent, pack, unpack

RAY = "ray"
LOOK = 0.2
"""Seconds from one look at the calls' events to the next, while none has ended."""


class RayCluster(Executor):
    """Carries out calls on a Ray cluster: "ray" is the one of this machine, which is started if there is none."""

    sends_files = True

    def __init__(self, address: str, on_event: CallListener) -> None:
        self._ray = connected(address)
        self._on_event = on_event
        self._running: dict[Any, Call] = {}
        self._sent: dict[Sent, Any] = {}
        self._stopped = False
        again = {"max_restarts": -1, "max_task_retries": -1}  # its machine may be lost, too
        self._events = self._ray.remote(_Events).options(num_cpus=0, **again).remote()
        self._task = self._ray.remote(_make)

    def submit(self, call: Call) -> None:
        data, files = pack(call)
        for sent, content in files.items():
            if sent not in self._sent:
                self._sent[sent] = self._ray.put(content)
        needs = {"num_cpus": call.cores, **({"memory": call.memory} if call.memory else {})}
        where = [self._sent[sent] for sent in files]  # in a list, Ray hands the references on, and not the contents
        task = self._task.options(name=call.key, max_retries=TRIES - 1, retry_exceptions=False, **needs)
        self._running[task.remote(version("adaptree"), data, list(files), where, self._events)] = call

    def outcomes(self, timeout: float) -> list[Outcome]:
        ready: list[Any] = []
        while not ready and timeout > 0 and self._running:
            ready, _ = self._ray.wait(list(self._running), timeout=min(LOOK, timeout), num_returns=len(self._running))
            timeout -= LOOK
            self._hear()
        return [self._end(reference) for reference in ready]

    def _hear(self) -> None:
        for key, event in self._ray.get(self._events.take.remote()):
            self._on_event(key, event)

    def _end(self, reference: Any) -> Outcome:
        call = self._running.pop(reference)
        lost = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except lost.TaskCancelledError:
            return Outcome(call.key, stopped=True)
        except lost.OutOfMemoryError:
            error = TrainingError("its machine ran out of memory.", hint="Declare fewer calls at a time, or --fast.")
            return Outcome(call.key, error=str(error))
        except (lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError, lost.LocalRayletDiedError):
            error = TrainingError(f"its process or its machine was lost, in {TRIES} tries.", hint="ray status")
            return Outcome(call.key, error=str(error))
        except lost.RayError as error:
            first = (str(error).strip().splitlines() or [""])[-1]
            return Outcome(call.key, error=f"unexpected {type(error).__name__}: {first}", expected=False)
        return Outcome(call.key, stopped=True) if self._stopped and not outcome.value else outcome

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for reference in self._running:
                self._ray.cancel(reference, force=False)

    def close(self) -> None:
        for reference in self._running:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        self._sent.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(self._events)


class _Events:
    """An actor that holds the events of calls until they are asked for."""

    def __init__(self) -> None:
        self.held: list[tuple[str, Event]] = []

    def put(self, key: str, event: Event) -> None:
        self.held.append((key, event))

    def take(self) -> list[tuple[str, Event]]:
        taken, self.held = self.held, []
        return taken


def _make(wanted: str, data: bytes, names: list[Sent], where: list[Any], events: Any) -> Outcome:
    """Make a call on a machine of the cluster."""
    import ray
    import ray.exceptions

    if (here := version("adaptree")) != wanted:
        error = UsageError(
            f"the machine {socket.gethostname()} has adaptree {here}, and this one {wanted}.",
            hint="Install the same version on all machines.",
        )
        return Outcome("", error=str(error))
    references = dict(zip(names, where, strict=True))
    call = unpack(data, lambda sent: ray.get(references[sent]))

    last: list[Any] = []

    def on_event(event: Event) -> None:
        last[:] = [events.put.remote(call.key, event)]

    outcome = carry_out(call, on_event)
    with contextlib.suppress(ray.exceptions.RayError):  # nobody listens any more
        ray.get(last)  # so that no event comes after the outcome
    return outcome


def connected(address: str) -> Any:
    """Return the module `ray`, connected to a cluster; raise UsageError where that cannot be."""
    scheme, _, host = address.partition("://")
    if scheme != RAY:
        raise UsageError(f"no such cluster: '{address}'.", hint="--cluster ray, or --cluster ray://HOST:10001")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UsageError("a cluster needs Ray.", hint="pip install 'adaptree[cluster]'") from None
    if not ray.is_initialized():
        try:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            if not host:
                options["include_dashboard"] = False
            ray.init(address=address if host else None, **options)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise UsageError(f"the cluster at {address} cannot be reached: {first}", hint="ray status") from None
    return ray
