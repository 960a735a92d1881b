"""The record of a task: everything about it but its tensors, kept as `task.json` with a checksum over itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

from adaptree.data.foreign_json import has_type, loads
from adaptree.errors import StoreError, TaskCorrupt, TaskNotFound
from adaptree.reports.json_text import json_value
from adaptree.tasks.names import rename_references

FORMAT = 1
RECORD, TENSORS = "task.json", "task.safetensors"
LARGEST_RECORD = 32_000_000
"""Bytes of a task.json; a usual one has some twenty thousand."""
MOST_LABELS = 100_000
LONGEST_METHOD = 10_000
"""Characters."""

# The parents of a task: keys of its record's `extra`. A composition is kept as text, each name with its version; a task
# without parents has none of these keys.
ON = "on"
"""The composition below the task: it was trained on top of it, and runs on top of it."""
FUSES = "fuses"
"""The composition fuse(…) that the task was trained as: it attends over these tasks' adapters."""
NEEDS = "needs"
"""{reference: digest of its tensors} of every task that ON and FUSES name: without them the task cannot run."""
MADE_OF = "made_of"
"""The composition that the task's own weights were computed from: average(…), drop(…), stack(…)."""
SAW = "saw"
"""{digest: task} of the data that the weights have learned from through parents, or in joint training."""
REBASED = "rebased"
"""For a task that was put into another base: the base, the version and the scores that it comes from."""
ROLLED_BACK = "rolled_back_from"
"""The version whose weights this one has again (`adaptree rollback`)."""
WARNINGS = "warnings"
"""Sentences about the run: that the task is no better than a baseline, or that its loss never fell."""
STREAM = "stream"
"""For a task that `adaptree stream` trained: the digest of its files' contents and of its settings."""
EVALUATED = "evaluated"
"""Not in `extra`, but a mark in the store (`Store.mark`): the rebased task has been scored on its new base."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything about a task but its tensors, as plain values that JSON can hold."""

    format: int = FORMAT
    name: str
    version: int = 0
    """0 until a store gives it one."""
    kind: str
    """'classify', 'tag', … (docs/kinds.md), or 'attached' for a task taken from a user's own Hugging Face model."""
    labels: list[str | int] = field(default_factory=list)
    method: str
    base: dict[str, Any]
    """name, fingerprint, architecture"""
    pooling: str = ""
    max_length: int = 0
    columns: dict[str, Any] = field(default_factory=dict)
    """which columns were read, by role: text, pair and label, or those of the kind's files"""
    data: dict[str, Any] = field(default_factory=dict)
    """name, digest, rows, train, validation, test, truncated, left_out; label_counts where known"""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """by part: validation, test"""
    intervals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """95 % [low, high], by part like the metrics"""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """majority, tfidf; scored on the test part, or on validation where there is no test"""
    parameters: dict[str, int] = field(default_factory=dict)
    """adapters, norms, head, trained, base, base_without_embeddings"""
    trained_percent: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """epochs, lr, batch_size, …"""
    history: list[dict[str, Any]] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    probe: dict[str, Any] = field(default_factory=dict)
    """inputs, and how their logits were computed"""
    versions: dict[str, str] = field(default_factory=dict)
    """adaptree, python, torch, transformers; filled when saved"""
    machine: dict[str, Any] = field(default_factory=dict)
    """processor, instructions, cores, threads, system (`adaptree.tasks.machine.here`); filled when saved"""
    created: str = ""
    """ISO 8601, UTC; filled when saved"""
    digest: str = ""
    """sha256 of task.safetensors; filled when saved"""
    file_bytes: int = 0
    """size of task.safetensors; filled when saved"""
    extra: dict[str, Any] = field(default_factory=dict)
    """what the kind keeps; the parents (ON, FUSES, NEEDS, MADE_OF, SAW); WARNINGS; `insight`, the card's errors"""

    @property
    def reference(self) -> str:
        """'reviews@3', or the bare name before it is stored."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def learned_from(self) -> dict[str, str]:
        """{digest: task} of all data that the weights have learned from: the task's own and SAW."""
        digest = self.data.get("digest")
        return {**self.extra.get(SAW, {}), **({digest: self.reference} if digest else {})}

    def unscored(self, **changes: Any) -> Record:
        """Return the record of a new task made from this one: without a version, scores, a history or a digest."""
        return dataclasses.replace(
            self, version=0, metrics={}, intervals={}, baselines={}, history=[], versions={}, machine={}, created="",
            digest="", file_bytes=0, **changes,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, with a checksum over all of them."""
        values = {item.name: json_value(getattr(self, item.name)) for item in dataclasses.fields(self)}
        return {**values, "checksum": checksum(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, called: str = "") -> Record:
        """Return the record that `to_json` wrote; ignore keys that this version does not know.

        `called` is the task's name in errors.
        """
        called = called or str(values.get("name", "?"))
        found = values.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise StoreError(
                f"task '{called}' is written in format {found}; this adaptree reads up to {FORMAT}.",
                hint="pip install --upgrade adaptree",
            )
        if values.get("checksum") != checksum({key: value for key, value in values.items() if key != "checksum"}):
            raise corrupt(called, RECORD, "its checksum does not match")
        known = {item.name: values[item.name] for item in dataclasses.fields(cls) if values.get(item.name) is not None}
        if missing := [name for name in ("format", "name", "kind", "method", "base") if name not in known]:
            raise corrupt(called, RECORD, f"'{missing[0]}' is missing")
        if problem := _problem(known):
            raise corrupt(called, RECORD, problem)
        return cls(**_upgraded(known))


@cache
def _types() -> dict[str, Any]:
    """Return the types of a record's values in JSON, where NaN is null, and of those inside them that are read."""
    number = float | None
    return {
        **get_type_hints(Record),
        "metrics": dict[str, dict[str, number]],
        "intervals": dict[str, dict[str, list[number] | None]],
        "baselines": dict[str, dict[str, number]],
        "columns": dict[str, str | list[str] | bool | int | None],
        **{f"columns.{role}": str | None for role in ("text", "pair", "label", "labels", "question", "context")},
        **{f"base.{name}": str for name in ("name", "fingerprint", "architecture")},
        **{f"data.{name}": str for name in ("name", "digest")},
        **{f"data.{name}": int for name in ("rows", "train", "validation", "test", "truncated")},
        "data.left_out": dict[str, int],
        "data.label_counts": dict[str, int] | None,
        "settings.metric": str | None,
        "settings.best_epoch": int | None,
        "probe.inputs": list[Any],
        **{f"extra.{name}": str for name in (ON, FUSES, MADE_OF, ROLLED_BACK, STREAM, "pooler")},
        **{f"extra.{name}": dict[str, str] for name in (NEEDS, SAW)},
        **{f"extra.{name}": dict[str, Any] for name in (REBASED, "insight", "joint")},
    }


def _problem(values: Mapping[str, Any]) -> str:
    """Return what is wrong with a record whose checksum holds; '' if nothing is."""
    types = _types()
    for name, value in values.items():
        if not has_type(value, types[name]):
            return f"'{name}' has the wrong type"
        for inner in value if isinstance(value, dict) else ():
            path = f"{name}.{inner}"
            if path in types and not has_type(value[inner], types[path]):
                return f"'{path}' has the wrong type"
    labels = values.get("labels", [])
    if len(labels) > MOST_LABELS:
        return f"it has {len(labels):,} labels, and {MOST_LABELS:,} are the most"
    if len(set(map(str, labels))) < len(labels):
        return "a label is there twice"
    for name in ("version", "max_length", "file_bytes"):
        if values.get(name, 0) < 0:
            return f"'{name}' is {values[name]}, less than 0"
    if len(values["method"]) > LONGEST_METHOD:
        return f"'method' has {len(values['method']):,} characters"
    return ""


def _upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an old record in today's form: several labels or numbers were once classify or regress."""
    extra = dict(values.get("extra", {}))
    if values["kind"] == "classify" and extra.pop("several", False):
        return {**values, "kind": "multilabel", "extra": extra}
    if values["kind"] == "regress" and "targets" in extra:
        return {**values, "kind": "multioutput"}
    return values


def read_record(folder: Path, *, called: str) -> Record:
    """Read the record in a task's folder and verify its checksum; `called` is the task's name in errors."""
    return Record.from_json(read_values(folder, called=called), called=called)


def read_values(folder: Path, *, called: str) -> dict[str, Any]:
    """Read a record's JSON values as they are in its file, those that this version does not know included."""
    try:
        values = loads(read_file(folder, RECORD, called, most=LARGEST_RECORD))
    except ValueError as error:
        raise corrupt(called, RECORD, f"broken JSON ({error})") from error
    if not isinstance(values, dict):
        raise corrupt(called, RECORD, "not a record")
    return values


def read_file(folder: Path, name: str, called: str, *, most: int) -> bytes:
    """Read one of a task's files, of at most so many bytes; raise the error that says which is missing or too large."""
    try:
        with (folder / name).open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise corrupt(called, name, f"{size:,} bytes, and at most {most:,} are expected")
            return file.read()
    except FileNotFoundError as error:
        if folder.is_dir():
            raise corrupt(called, name, "the file is missing") from error
        raise TaskNotFound(f"no task in {folder}: there is no such folder.", hint="adaptree list") from error
    except OSError as error:
        raise StoreError(f"cannot read {folder / name}: {error.strerror or error}.",
                         hint="Make the file readable.") from error  # fmt: skip


def corrupt(called: str, file: str, why: str) -> TaskCorrupt:
    """Return the error for a damaged file of a task; `called` has a version if the task is in a store."""
    remove = f"remove it (adaptree remove {called})" if "@" in called else "remove the folder"
    return TaskCorrupt(
        f"task '{called}' is damaged: {file}: {why}.",
        hint=f"Restore the file from a copy, or {remove} and train again.",
    )


def checksum(values: Mapping[str, Any]) -> str:
    """Return the sha256 of a record's JSON values, in one canonical spelling."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def content(values: Mapping[str, Any]) -> str:
    """Return the sha256 of what a record says, the digest of the tensors included, whatever a store calls the task.

    Its own name and version do not count, and its parts count by their digests: a task that is added to another store
    under another name, or whose parts are, has the same content.
    """
    extra = dict(values.get("extra") or {})
    needs = extra.pop(NEEDS, {})
    for key in (ON, FUSES):
        if key in extra:
            extra[key] = rename_references(extra[key], needs)
    said = {key: value for key, value in values.items() if key not in ("name", "version", "checksum")}
    return checksum({**said, "extra": extra, NEEDS: sorted(needs.values())})


def installed() -> dict[str, str]:
    """Return the versions of Python and of the packages that train tasks, without importing them."""
    found = {"python": platform.python_version()}
    for package in ("adaptree", "torch", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
