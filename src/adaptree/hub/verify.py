"""Verify a store: every file against its digests, every base against its fingerprint, every task against its probe.

A task's record keeps a few inputs and the logits that it gave for them (`Record.probe`). The same kind of machine must
give the same bits again; another one, numbers that are near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.data.events import Event, Listener, silent
from adaptree.errors import AdaptreeError, StoreError, TaskCorrupt, TaskNotFound
from adaptree.tasks import beside, digests, machine, parts, runs
from adaptree.tasks.names import parse_reference
from adaptree.tasks.record import Record, installed
from adaptree.training.work.spread import Spread

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

OK, DAMAGED, NOT_CHECKED = "ok", "damaged", "not checked"
TOLERANCE = 1e-4
"""How far a logit may be from the recorded one on another kind of machine."""
EXACTLY, NEARLY = "bit for bit", f"within {TOLERANCE:g}"
LOGITS = "probe.logits"
VERSIONS, PROBES = 100, 50
"""How many versions another process checks at a time, and computes the probes of."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A task's answers to its probe inputs, beside those that were recorded when it was made."""

    state: str
    """ok, damaged or not checked"""
    comparison: str = ""
    """bit for bit, or within a tolerance"""
    difference: float | None = None
    """the largest between a logit and the recorded one"""
    why: str = ""
    """why it was not computed, or why not compared bit for bit"""

    def __str__(self) -> str:
        if self.state == NOT_CHECKED:
            return f"{NOT_CHECKED}: {self.why}"
        if self.state == OK and self.comparison == EXACTLY:
            return EXACTLY
        return f"differs by {self.difference:.2g}, {self.comparison}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found of one version; or of the small files beside a task's versions; or of the store's other files."""

    task: str
    """reviews@3; reviews for the files beside its versions; '' for the store's own"""
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each file, by its path in the store"""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """what is wrong, by file"""
    unknown: tuple[str, ...] = ()
    """files that adaptree did not write"""
    notes: tuple[str, ...] = ()
    """what is not covered by a digest"""
    weights: str = ""
    """the digest of the tensors"""
    base: str = ""
    """the fingerprint of its base"""
    probe: Probe | None = None
    repaired: Mapping[str, str] = field(default_factory=dict)
    """how, by file"""

    @property
    def state(self) -> str:
        """ok, damaged or not checked."""
        if self.damaged:
            return DAMAGED
        return OK if self.probe is None else self.probe.state

    @property
    def problem(self) -> str:
        """What is wrong in one line, by file; '' if nothing is."""
        found = [f"{file}: {why}" for file, why in self.damaged.items()]
        if self.probe is not None and self.probe.state != OK:
            found.append(f"probe {self.probe}")
        return "; ".join(found)


@dataclass(frozen=True, kw_only=True)
class CheckedBase:
    """A base whose weights were hashed again."""

    name: str
    fingerprint: str
    state: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found in a store."""

    store: str
    time: str
    versions: Mapping[str, str]
    """of adaptree, Python, torch and transformers"""
    rows: list[Checked]
    bases: list[CheckedBase] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)
    """where probes were computed"""

    @property
    def damaged(self) -> list[Checked]:
        return [row for row in self.rows if row.state == DAMAGED]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged; what could not be checked does not count."""
        return not self.damaged and all(base.state != DAMAGED for base in self.bases)

    @property
    def tasks(self) -> list[Checked]:
        """The rows of versions."""
        return [row for row in self.rows if "@" in row.task]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        files = sum(len(row.files) for row in self.rows)
        what = f"{_counted(len(self.tasks), 'version')} of tasks, {_counted(files, 'file')}"
        bad = [f"{len(self.damaged)} damaged"] * bool(self.damaged)
        left = [row for row in self.rows if row.state == NOT_CHECKED]
        bad += [f"{_counted(len(left), 'probe')} not checked"] * bool(left)
        exact = sum(row.probe is not None and row.probe.comparison == EXACTLY for row in self.tasks)
        near = sum(row.probe is not None and row.probe.comparison == NEARLY for row in self.tasks)
        probed = [f"{exact} probes {EXACTLY}"] * bool(exact) + [f"{near} {NEARLY}"] * bool(near)
        return ", ".join([f"{what}: {', '.join(bad) if bad else 'nothing is damaged'}", *probed]) + "."

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as plain values."""
        rows = [{"state": row.state, **asdict(row)} for row in self.rows]
        return {**asdict(self), "ok": self.ok, "rows": rows}


def verify(
    store: Store,
    references: Sequence[str] = (),
    *,
    probes: bool = False,
    repair: Store | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    on_event: Listener = silent,
    **opening: Any,
) -> Verification:
    """Hash every file of a store, or of some tasks with their parts, and compare with what was written.

    With `probes`, every base's fingerprint and every task's answers to its probe are computed again. `repair` is
    another store, from which damaged files are restored (`adaptree.hub.repair`). `opening` are device,
    trust_remote_code and allow_pickle, for the bases. An event `verified` comes after each version. The work is done in
    `jobs` processes, or on a `cluster` ("ray", or its address), whose machines must all reach the store.
    """
    from adaptree.hub.repair import repair as restore

    chosen = _chosen(store, references)
    spread = Spread(store, jobs, cluster)
    rows = _check(store, chosen, not references, on_event, spread)
    if repair is not None and any(row.damaged for row in rows):
        done = restore(store, repair, rows)
        rows = _check(store, chosen, not references, silent, spread)
        rows = [replace(row, repaired={file: how for file, how in done.items() if _is_of(row, file)}) for row in rows]
    bases: list[CheckedBase] = []
    where: Mapping[str, Any] = {}
    if probes:
        found, bases, where = _probe(store, rows, on_event, opening, spread)
        rows = [replace(row, probe=found.get(row.task)) for row in rows]
    return Verification(
        store=store.location,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=installed(),
        rows=rows,
        bases=bases,
        machine=where,
    )


def _chosen(store: Store, references: Sequence[str]) -> list[str]:
    """Return the versions to verify: all, or those of the references and of what they need."""
    if not references:
        return [f"{name}@{number}" for name in store.names() for number in store.versions(name)]
    todo: list[str] = []
    for reference in references:
        folder = store.path_of(reference)  # raises TaskNotFound
        name, at, _ = reference.partition("@")
        todo += [f"{name}@{folder.name}"] if at else [f"{name}@{number}" for number in store.versions(name)]
    chosen: list[str] = []
    while todo:
        if (reference := todo.pop(0)) not in chosen:
            chosen.append(reference)
            todo += [needed for needed in parts.stored_needs(store, reference) if needed in store]
    return chosen


def _check(store: Store, chosen: Sequence[str], whole: bool, on_event: Listener, spread: Spread) -> list[Checked]:
    """Return a row for each version, for the files beside the versions of each name, and for all other files."""
    seen: set[str] = set()

    def hear(event: Event) -> None:
        if event["task"] not in seen:  # a shard whose machine is lost is checked again
            seen.add(event["task"])
            on_event({**event, "number": len(seen), "of": len(chosen)})

    shards = spread.shards(chosen, VERSIONS)
    found = spread.do(check_files, [(shard,) for shard in shards], hear)
    rows: list[Checked] = [row for shard in found for row in shard if row is not None]
    names = dict.fromkeys(parse_reference(reference)[0] for reference in chosen)
    rows += [row for name in names if (row := _beside(store, name)).files or row.unknown]
    if whole:
        rows.append(_others(store, rows))
    return rows


def check_files(store: Store, references: Sequence[str], on_event: Listener) -> list[Checked | None]:
    """Return what the files of some versions are like, None for one that was removed meanwhile."""
    found = []
    with ThreadPoolExecutor() as pool:  # reading and hashing release the interpreter's lock
        for reference, row in zip(references, pool.map(lambda each: _version(store, each), references), strict=True):
            on_event({"event": "verified", "task": reference})
            found.append(row)
    return found


def _version(store: Store, reference: str) -> Checked | None:
    """Return what the files of a version are like; None if another process has removed it meanwhile."""
    name, number = parse_reference(reference)
    try:
        store.refresh(reference)
        folder = store.path_of(reference)
    except TaskNotFound:
        return None
    except TaskCorrupt as error:  # of a store behind a URL: it cannot even be fetched
        return Checked(task=reference, files={}, damaged={f"tasks/{name}/{number}": error.what})
    found = digests.check_files(folder, called=reference)
    if found.damaged and number not in store.versions(name):
        return None
    try:
        wrong = {f"tasks/{name}/{file}": "it is not what the version has" for file in store.wrong_copies(reference)}
    except TaskNotFound:
        return None
    at = f"tasks/{name}/{number}"
    return Checked(
        task=reference,
        files={f"{at}/{file}": digest for file, digest in found.digests.items()},
        damaged={f"{at}/{file}": why for file, why in found.damaged.items()} | wrong,
        unknown=tuple(f"{at}/{file}" for file in found.unknown),
        notes=() if found.covered or found.damaged else (digests.NOT_COVERED,),
        weights=found.record.digest if found.record else "",
        base=str(found.record.base.get("fingerprint", "")) if found.record else "",
    )


def _is_of(row: Checked, file: str) -> bool:
    """Return whether a file is one of a row's, or a copy of one beside the version."""
    at, _, ending = file.rpartition(".")
    return file in row.files or (at == f"tasks/{row.task.replace('@', '/')}" and ending in ("json", "sig"))


def _beside(store: Store, name: str) -> Checked:
    """Return what the small files beside a task's versions are like."""
    import hashlib

    at = f"tasks/{name}"
    files, damaged, unknown = {}, {}, []
    for file in store.beside(name):
        if not beside.is_known(file):
            unknown.append(f"{at}/{file}")
            continue
        text = store.read_beside(name, file)
        files[f"{at}/{file}"] = hashlib.sha256(text.encode()).hexdigest()
        if why := beside.problem(file, text):
            damaged[f"{at}/{file}"] = why
    return Checked(task=name, files=files, damaged=damaged, unknown=tuple(unknown))


def _others(store: Store, rows: Sequence[Checked]) -> Checked:
    """Return what the files of a store are like that belong to no task."""
    seen = {file for row in rows for file in (*row.files, *row.damaged, *row.unknown)}
    checked = {row.task for row in rows}
    added = tuple(  # by other processes, since
        f"tasks/{name}/{number}/"
        for name in store.names()
        for number in store.versions(name)
        if f"{name}@{number}" not in checked
    )
    files, damaged, unknown, notes = {}, {}, [], []
    for file in store.files():
        path = store.path / file
        if file in seen or file.startswith(added):
            continue
        if not runs.is_known(file):
            unknown.append(file)
            continue
        try:
            files[file] = digests.digest_of(path)
            if why := runs.problem(path):
                damaged[file] = why
        except StoreError:
            notes.append(f"{file}: {runs.NOT_COVERED}")
        except FileNotFoundError:
            files.pop(file, None)  # its run has ended
    return Checked(task="", files=files, damaged=damaged, unknown=tuple(unknown), notes=tuple(notes))


# probes


@dataclass(frozen=True)
class _Probed:
    """The probes of some versions of one base, that base, and the machine that computed them."""

    probes: dict[str, Probe]
    base: CheckedBase
    machine: dict[str, Any]


def _probe(
    store: Store, rows: Sequence[Checked], on_event: Listener, opening: Mapping[str, Any], spread: Spread
) -> tuple[dict[str, Probe], list[CheckedBase], dict[str, Any]]:
    """Return the probe of each whole version, every base, and what is common to the machines that computed them."""
    by_base: dict[str, list[str]] = {}
    for row in rows:
        if "@" in row.task and not row.damaged:
            by_base.setdefault(row.base, []).append(row.task)
    wanted = []
    for fingerprint, references in by_base.items():
        base = _wanted(store, fingerprint, references[0])
        wanted += [(base, shard, dict(opening)) for shard in spread.shards(references, PROBES)]
    found: list[_Probed] = spread.do(check_answers, wanted, on_event)
    probes = {reference: probe for each in found for reference, probe in each.probes.items()}
    bases: dict[str, CheckedBase] = {}
    for each in found:  # of several machines, the one counts on which something is wrong
        known = bases.get(each.base.fingerprint)
        bases[each.base.fingerprint] = each.base if known is None or known.state == OK else known
    machines = [each.machine for each in found] or [machine.here()]
    common = {name: value for name, value in machines[0].items() if all(m.get(name) == value for m in machines)}
    return probes, list(bases.values()), common


def check_answers(
    store: Store, wanted: WantedBase, references: Sequence[str], opening: Mapping[str, Any], on_event: Listener
) -> _Probed:
    """Return the probes of some versions of a base, which is opened for this."""
    import torch

    threads, here = torch.get_num_threads(), machine.here()
    found: dict[str, Probe] = {}
    try:
        base, checked = _base(wanted, opening)
        for reference in references:
            on_event({"event": "probing", "task": reference, "base": checked.name})
            found[reference] = (
                Probe(state=NOT_CHECKED, why=checked.why) if base is None else _answers(store, reference, base)
            )
    finally:
        torch.set_num_threads(threads)
    return _Probed(found, checked, here)


@dataclass(frozen=True)
class WantedBase:
    """A base that versions of a store were trained on, and where it is."""

    name: str
    fingerprint: str
    place: str | Path
    """A Path if it is a folder here, a copy of which goes to other machines."""
    said: str
    """The place, as people know it."""
    writes: bool


def _wanted(store: Store, fingerprint: str, reference: str) -> WantedBase:
    """Return the base of a version."""
    from adaptree.tasks.record import read_record

    record = read_record(store.path_of(reference), called=reference)
    name = str(record.base.get("name", ""))
    place = runs.bases_of(store).get(fingerprint, name)
    is_folder = bool(place) and Path(place).is_dir()
    return WantedBase(name, fingerprint, Path(place) if is_folder else place, str(place), kinds.writes(record.kind))


def _base(wanted: WantedBase, opening: Mapping[str, Any]) -> tuple[Base | None, CheckedBase]:
    """Return a base of a fingerprint that this machine has, None if it has none, and what is to be said of it."""
    from adaptree.models.fingerprint import fingerprint as compute
    from adaptree.models.opening import base_of

    name, fingerprint = wanted.name, wanted.fingerprint
    try:
        device = str(opening.get("device", "auto"))
        base = base_of(wanted.place, device, None, writes=wanted.writes, **_trust(opening))
    except AdaptreeError as error:
        why = f"its base cannot be loaded: {error.what}"
        return None, CheckedBase(name=name, fingerprint=fingerprint, state=NOT_CHECKED, why=why)
    if compute(base.hooked.backbone) != fingerprint:
        why = f"the base in {wanted.said} is not {name}: it has another fingerprint"
        return None, CheckedBase(name=name, fingerprint=fingerprint, state=DAMAGED, why=why)
    return base, CheckedBase(name=name, fingerprint=fingerprint, state=OK)


def _trust(opening: Mapping[str, Any]) -> dict[str, bool]:
    return {key: bool(value) for key, value in opening.items() if key in ("trust_remote_code", "allow_pickle")}


def _answers(store: Store, reference: str, base: Base) -> Probe:
    """Compute a task's logits for its probe again and compare."""
    import torch

    try:
        task = store[reference]
        record = task.record
        inputs, kept = record.probe.get("inputs"), task.tensors.get(LOGITS)
        if not inputs or kept is None:
            return Probe(state=NOT_CHECKED, why="it has no probe")
        if threads := int(record.probe.get("threads") or 0):
            torch.set_num_threads(threads)
        logits = base.bind(task).logits(inputs)
    except TaskCorrupt as error:
        return Probe(state=DAMAGED, comparison="not comparable", difference=float("nan"), why=error.what)
    except AdaptreeError as error:
        return Probe(state=NOT_CHECKED, why=error.what)
    others = machine.differences(_computed_on(record), machine.computing(base.device))
    comparison = NEARLY if others else EXACTLY
    why = f"other or unknown: {', '.join(others)}" if others else ""
    if logits.shape != kept.shape:
        return Probe(state=DAMAGED, comparison=comparison, difference=float("nan"), why="its shape is another")
    same = torch.equal(logits, kept)
    difference = 0.0 if same else float((logits.double() - kept.double()).abs().max())
    fine = same or (bool(others) and difference <= TOLERANCE)
    return Probe(state=OK if fine else DAMAGED, comparison=comparison, difference=difference, why=why)


def _computed_on(record: Record) -> dict[str, Any]:
    """Return on what a task's probe was computed, as far as its record says."""
    known: dict[str, Any] = {name: record.versions[name] for name in machine.PACKAGES if name in record.versions}
    if "threads" in record.probe:
        known["threads"] = record.probe["threads"]
    return {**known, **dict(record.probe.get("machine") or {})}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
