"""What `adaptree doctor` looks at: an installation, and what a deployment of it needs to reach."""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import platform
import re
import stat
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaptree import __version__
from adaptree.data.foreign_json import loads
from adaptree.errors import AdaptreeError, UsageError

if TYPE_CHECKING:
    from adaptree.data.events import Listener
    from adaptree.tasks.store import Store

FIXED = {
    "torch": ("2.6.0", "CVE-2025-32434"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "python-multipart": ("0.0.18", "CVE-2024-53981"),
    "starlette": ("0.49.1", "CVE-2025-62727"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "pyarrow": ("14.0.1", "CVE-2023-47248"),
}
"""The first release without a known hole that matters here; `make audit` asks for all that are known today."""
MOST_APART = 5.0
"""Seconds that two clocks may differ: leases of jobs and of claims on objects are longer by far."""
WAIT = 10.0
"""Seconds for a server to answer."""
NODES_WAIT = 120.0
"""Seconds for the nodes of a cluster to answer."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `ok` is None where there was nothing to look at."""

    name: str
    ok: bool | None
    what: str
    hint: str = ""

    @property
    def line(self) -> str:
        mark = "-" if self.ok is None else "✔" if self.ok else "✘"
        return f"{mark} {self.name}: {self.what}  {self.hint}".rstrip()


def doctor(
    store: Store, *, base: str = "minilm", url: str | None = None, key: str | None = None, cluster: str | None = None
) -> Iterator[Check]:
    """Yield what is found of the installation, the base, the store, its databases, a server and a cluster."""
    yield from _installed()
    yield _processor()
    own = ""
    for check, mark in _base(base):
        own = mark
        yield check
    yield from _store(store)
    yield from _index(store)
    yield from _jobs(store)
    yield from _tasks(store, own)
    if url is not None:
        yield from _server(url.rstrip("/"), key, own)
    if cluster is not None:
        yield from _cluster(cluster, base, own)


def _failed(name: str, error: AdaptreeError) -> Check:
    return Check(name, False, error.what, error.hint)


# the installation


def _installed() -> Iterator[Check]:
    """Yield whether the packages that are here are ones that adaptree takes, extra by extra."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    version = platform.python_version()
    known = sys.version_info >= (3, 11)
    yield Check("python", known, version, "" if known else "adaptree needs Python 3.11 or newer.")
    extras: dict[str, list[Requirement]] = {"": []}
    for text in importlib.metadata.requires("adaptree") or ():
        needed = Requirement(text)
        marked = re.search(r"extra == ['\"]([^'\"]+)", str(needed.marker or ""))
        if needed.name != "adaptree":
            extras.setdefault(marked[1] if marked else "", []).append(needed)
    for extra, needs in extras.items():
        if extra in ("dev", "docs"):
            continue
        has = {needed.name: _version(needed.name) for needed in needs}
        wrong = [str(r.name) + str(r.specifier) for r in needs if has[r.name] and not r.specifier.contains(has[r.name])]
        absent = [needed.name for needed in needs if not has[needed.name]]
        name = f"extra {extra}" if extra else "packages"
        install = f"pip install 'adaptree[{extra}]'" if extra else "pip install --upgrade adaptree"
        shown = ", ".join(f"{package} {found}" for package, found in has.items() if found)
        if wrong:
            yield Check(name, False, f"{', '.join(wrong)} is needed, and here is {shown}.", install)
        elif absent and (not extra or len(absent) < len(needs)):
            yield Check(name, False if not extra else None, f"{', '.join(absent)} is not installed.", install)
        else:
            yield Check(name, None if absent else True, shown if not absent else "not installed", "")
    holes = [
        f"{package} {found} ({what}, fixed in {fixed})"
        for package, (fixed, what) in FIXED.items()
        if (found := _version(package)) and Version(found) < Version(fixed)
    ]
    upgrade = "pip install --upgrade " + " ".join(hole.split()[0] for hole in holes)
    yield Check("known holes", not holes, "; ".join(holes) or f"none of {len(FIXED)}", upgrade if holes else "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> Check:
    """Return how many threads torch computes with, and which instructions it uses."""
    import torch

    from adaptree.training.precision import quick_at_bf16

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    bf16 = "bf16" if quick_at_bf16("cpu") else "no bf16"
    devices = f", {torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else ""
    what = f"{threads} threads on {cores} cores, {torch.backends.cpu.get_cpu_capability()}, {bf16}{devices}"
    fits = threads <= cores
    return Check(
        "processor", fits, what, "" if fits else f"More threads than cores wait for each other: --threads {cores}"
    )


def _base(name: str) -> Iterator[tuple[Check, str]]:
    """Yield a check of the base, and its fingerprint, '' if it cannot be loaded."""
    from adaptree.models.loading import load_base

    try:
        base = load_base(name)
    except AdaptreeError as error:
        yield _failed("base", error), ""
        return
    yield Check("base", True, f"{base.name}, fingerprint {base.fingerprint[:12]}"), base.fingerprint


# what is shared


def _store(store: Store) -> Iterator[Check]:
    """Yield whether the store can be written, read and deleted from, who else may write, and its clock."""
    probe, content = f".doctor-{uuid.uuid4().hex}", uuid.uuid4().bytes
    if "://" in store.location:
        yield from _objects(store, probe, content)
        return
    path = store.path / probe
    try:
        store.path.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        same, changed = path.read_bytes() == content, path.stat().st_mtime
        path.unlink()
    except OSError as error:
        who = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
        why = f"'{error.filename or store.path}': {error.strerror or error}."
        yield Check("store", False, why, f"Let {who} write there, or choose another: --store FOLDER")
        return
    yield Check("store", same, f"{store.location}: written, read and deleted", "" if same else "The disk is damaged.")
    yield _clock("store's clock", changed)
    if os.name != "nt" and store.path.stat().st_mode & stat.S_IWOTH:
        yield Check("permissions", False, f"everybody may write to {store.location}.", f"chmod o-w '{store.location}'")


def _objects(store: Any, probe: str, content: bytes) -> Iterator[Check]:
    objects = store.objects
    try:
        objects.check()
        objects.put(probe, content)
        same = objects.read(probe) == content
        changed = objects.changed(probe)
        objects.delete(probe)
    except AdaptreeError as error:
        yield _failed("store", error)
        return
    yield Check("store", same, f"{objects.shown}: written, read and deleted", "" if same else "It gives other bytes.")
    if changed is not None:
        yield _clock("store's clock", changed)


def _clock(name: str, there: float) -> Check:
    apart = there - time.time()
    ok = abs(apart) <= MOST_APART
    what = f"{abs(apart):.1f} s {'ahead' if apart > 0 else 'behind'}"
    return Check(name, ok, what, "" if ok else "Let both keep time by NTP: leases are counted in seconds.")


def _index(store: Store) -> Iterator[Check]:
    """Yield whether the database of the index answers."""
    from adaptree.tasks.index import SCHEMA

    if not store.index.server:
        yield Check("index", True, f"a file in the cache folder, schema {SCHEMA}")
        return
    try:
        store.index.rows()
    except AdaptreeError as error:
        yield _failed("index", error)
        return
    yield Check("index", True, f"PostgreSQL, schema {SCHEMA}")


def _jobs(store: Store) -> Iterator[Check]:
    """Yield whether the database of jobs answers, its schema, and its clock if it is a server's."""
    from adaptree.serve.jobs.database import SCHEMA, Database

    try:
        database = Database(store)
    except UsageError as error:
        yield Check("jobs", None, error.what, error.hint)
        return
    try:
        found = database.schema()
        if found is None:
            yield Check("jobs", None, f"none yet in {database.shown}")
        elif found != SCHEMA:
            hint = "Use a newer adaptree." if found > SCHEMA else "It is upgraded when a server or a worker starts."
            yield Check("jobs", False, f"{database.shown} has schema {found}, this adaptree {SCHEMA}.", hint)
        else:
            yield Check("jobs", True, f"{database.shown}, schema {found}")
        if database.file is None:
            yield _clock("database's clock", database.clock())
    except AdaptreeError as error:
        yield _failed("jobs", error)
    finally:
        database.dispose()


def _tasks(store: Store, own: str) -> Iterator[Check]:
    """Yield how many of the store's tasks are of this base."""
    try:
        marks = [row.summary.fingerprint for row in store.rows()]
    except AdaptreeError as error:
        yield _failed("tasks", error)
        return
    if not marks:
        yield Check("tasks", None, "none yet", "adaptree train FILE --name NAME")
        return
    mine = sum(mark == own for mark in marks)
    what = f"{mine:,} of {len(marks):,} versions are of this base"
    yield Check("tasks", mine > 0, what, "" if mine else "Name the base that they were trained on: --base")


# a server


def _server(url: str, key: str | None, own: str) -> Iterator[Check]:
    """Yield whether a server is alive and ready, and serves the same base."""
    for name in ("health", "ready"):
        try:
            said = _get(f"{url}/{name}", key)
        except (OSError, ValueError, http.client.HTTPException) as error:
            code = getattr(error, "code", None)
            why = f"answers {code}" if code else str(getattr(error, "reason", error))
            yield Check(f"server {name}", False, f"{url}/{name}: {why}.", "Start it, or correct --url.")
            return
        yield Check(f"server {name}", True, f"{url}/{name}")
    mark = str(said.get("fingerprint", ""))
    if not mark:
        yield Check("server's base", None, "the server does not say which it is.", "Is it an older adaptree?")
    else:
        hint = "" if mark == own else "Serve the base that tasks are trained on: adaptree serve --base"
        yield Check("server's base", mark == own, f"{said.get('base', '?')}, fingerprint {mark[:12]}", hint)


def _get(url: str, key: str | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if not url.startswith(("http://", "https://")):
        raise ValueError("it is not an http:// or https:// address")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=WAIT) as answer:
        said = loads(answer.read())
    if not isinstance(said, dict):
        raise ValueError("it is not adaptree that answers")
    return said


# a cluster


def _cluster(address: str, base: str, own: str) -> Iterator[Check]:
    """Yield whether each node of a Ray cluster has the same versions and the same base."""
    from adaptree.training.work import Call, executor_for

    try:
        executor = executor_for(address, 1, lambda key, event: None)
    except AdaptreeError as error:
        yield _failed("cluster", error)
        return
    try:
        import ray

        # A call that takes all cores of its node: no two of them can be on one.
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        for number, node in enumerate(nodes):
            executor.submit(Call(f"doctor {number}", describe_node, (base,), cores=int(node["Resources"]["CPU"])))
        until, left = time.monotonic() + NODES_WAIT, len(nodes)
        while left and time.monotonic() < until:
            for outcome in executor.outcomes(1.0):
                left -= 1
                yield _node(outcome, own)
        if left:
            yield Check("cluster", False, f"{left} of {len(nodes)} nodes gave no answer.", "Are they busy? ray status")
    finally:
        executor.close()


def _node(outcome: Any, own: str) -> Check:
    if outcome.value is None:
        return Check("node", False, outcome.error or "no answer", "ray status")
    said = outcome.value
    here = describe_node("", None) | {"fingerprint": own}
    differs = [
        name for name in ("adaptree", "python", "torch", "transformers", "fingerprint") if said[name] != here[name]
    ]
    what = ", ".join(f"{name} {str(said[name])[:12]}" for name in said if name != "host")
    hint = f"Install what is here: {', '.join(f'{n} {str(here[n])[:12]}' for n in differs)}" if differs else ""
    return Check(f"node {said['host']}", not differs, what, hint)


def describe_node(base: str, on_event: Listener | None) -> dict[str, str]:
    """Return the versions on this machine, and the fingerprint of a base if one is named."""
    from adaptree.models.loading import load_base

    found = {"host": platform.node(), "adaptree": __version__, "python": platform.python_version()}
    found |= {package: _version(package) for package in ("torch", "transformers")}
    return found | ({"fingerprint": load_base(base).fingerprint} if base else {})
