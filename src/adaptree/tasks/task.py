"""A task: a dict of tensors plus a small record, and the folder that holds both.

    task.json          the record, with a checksum over itself and the digest of the tensors
    task.safetensors   all of v, and the probe inputs' logits ('probe.logits')
    README.md          the card; it can be lost, as it writes itself
    *.svg              the card's figures, drawn from the record; they too
    parts/             the tasks that it is made of, outside of a store, which has them in their own places

The folder is written beside its place and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import BadName, StoreError, TaskCorrupt, TaskNotFound

if TYPE_CHECKING:
    import torch

FORMAT = 1
RECORD, TENSORS, CARD, PARTS = "task.json", "task.safetensors", "README.md", "parts"
PROBE = "probe."
ON, FUSES, NEEDS = "on", "fuses", "needs"
"""In a record's extra: the composition that a task was trained on, the one that it fuses, and the tasks that both name,
with the digests of their tensors."""
MADE_OF = "made_of"
"""In a record's extra: the composition that a task's weights were computed from, each name with its version."""
SAW = "saw"
"""In a record's extra: the data of others that its weights have learned from, by digest, each with its task: of those
that it is made of, or was trained together with."""
TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})  # a rename met something that was there before

_PART = r"[a-z0-9][a-z0-9_-]{0,63}"
NAME = re.compile(rf"{_PART}(/{_PART})?")
VERSION = re.compile(r"[1-9][0-9]{0,8}")


def seen(record: Record) -> dict[str, str]:
    """The data that a task's weights have learned from, by digest, each with the task that it was the data of."""
    digest = record.data.get("digest")
    return {**record.extra.get(SAW, {}), **({digest: record.reference} if digest else {})}


def check_name(name: str) -> str:
    """The name itself when it obeys the rule; otherwise an error that says the rule and offers a name that does."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise BadName(
        f"{name!r} cannot be a task's name: it is 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or a digit, "
        "optionally after one namespace and a slash (lang/qu).",
        hint=f"Try '{_corrected(str(name))}'.",
    )


def _corrected(name: str) -> str:
    """The nearest name that obeys the rule."""
    plain = unicodedata.normalize("NFKD", name.partition("@")[0]).encode("ascii", "ignore").decode().lower()
    space, slash, rest = plain.partition("/")
    parts = (re.sub(r"[^a-z0-9_]+", "-", part).lstrip("_-")[:64].rstrip("-") for part in (space, rest if slash else ""))
    return "/".join(part for part in parts if part) or "my-task"


def parse_reference(reference: str) -> tuple[str, int | None]:
    """'reviews@3' is ('reviews', 3); 'reviews' is ('reviews', None), the newest version."""
    if any(mark in str(reference) for mark in "({"):
        raise BadName(f"'{reference}' is no task's name, but a composition.", hint="Name one of its tasks.")
    name, at, version = str(reference).partition("@")
    check_name(name)
    if not at:
        return name, None
    if not VERSION.fullmatch(version):
        raise TaskNotFound(
            f"no version {version!r} of task '{name}': versions are numbers from 1.", hint=f"adaptree history {name}"
        )
    return name, int(version)


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
    """which columns were read, by what they are: text, pair and label, or what the kind's files have"""
    data: dict[str, Any] = field(default_factory=dict)
    """name, digest, rows, train, validation, test, truncated, left_out; label_counts where known"""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """by part: validation, test"""
    intervals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """95 % [low, high], by part as the metrics"""
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
    created: str = ""
    """ISO 8601, UTC; filled when saved"""
    digest: str = ""
    """sha256 of task.safetensors; filled when saved"""
    file_bytes: int = 0
    """size of task.safetensors; filled when saved"""
    extra: dict[str, Any] = field(default_factory=dict)
    """what other kinds of task need; `insight`, what the card tells of the answers beside their scores"""

    @property
    def reference(self) -> str:
        """'reviews@3', or the bare name before it is stored."""
        return f"{self.name}@{self.version}" if self.version else self.name

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values, with a checksum over all of them."""
        values = {item.name: _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}
        return {**values, "checksum": _checksum(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, called: str = "") -> Record:
        """The record again; keys that this version does not know are left out."""
        called = called or str(values.get("name", "?"))
        found = values.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise StoreError(
                f"task '{called}' is written in format {found}; this adaptree reads up to {FORMAT}.",
                hint="pip install --upgrade adaptree",
            )
        if values.get("checksum") != _checksum({key: value for key, value in values.items() if key != "checksum"}):
            raise corrupt(called, RECORD, "its checksum does not match")
        known: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            value = values.get(item.name)
            if value is not None:
                if not _fits(value, str(item.type)):
                    raise corrupt(called, RECORD, f"'{item.name}' has the wrong type")
                known[item.name] = value
        if missing := [name for name in ("format", "name", "kind", "method", "base") if name not in known]:
            raise corrupt(called, RECORD, f"'{missing[0]}' is missing")
        return cls(**_upgraded(known))


def _upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Return a record's values as written now: once several labels or numbers were kinds classify or regress too."""
    extra = dict(values.get("extra", {}))
    if values["kind"] == "classify" and extra.pop("several", False):
        return {**values, "kind": "multilabel", "extra": extra}
    if values["kind"] == "regress" and "targets" in extra:
        return {**values, "kind": "multioutput"}
    return values


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value has the outer type of a field: 'dict[…]', 'list[…]', 'str', 'int' or 'float'."""
    kinds: dict[str, tuple[type, ...]] = {
        "dict": (dict,), "list": (list,), "str": (str,), "int": (int,), "float": (int, float),
    }  # fmt: skip
    return isinstance(value, kinds[annotation.partition("[")[0]])


def _plain(value: Any) -> Any:
    """The value as JSON holds it; NaN and infinity become null, for which JSON has no other word."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()  # a numpy or torch scalar
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _checksum(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


class Task:
    """A record and its tensors (contiguous, on the CPU, not copied when they are so already).

    `parts` are the tasks that it is made of or was trained on, by the references that its record has for them.
    """

    def __init__(
        self, record: Record, tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Task] | None = None
    ) -> None:
        self.record = record
        self.parts = dict(parts or {})
        self.tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All of v: the tensors without the probe's."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.startswith(PROBE)}

    @property
    def bytes(self) -> int:
        """What the weights weigh."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    def save(self, folder: str | Path) -> Task:
        """Write the task as a new folder, whole or not at all; the task that is returned has its digest."""
        target = Path(folder)
        staging = target.parent / f".{target.name}-{uuid.uuid4().hex}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            saved = self._write_whole(staging)
            os.rename(staging, target)  # an empty folder is replaced, one with files in it is not
            sync_folder(target.parent)
        except OSError as error:
            if error.errno in TAKEN and target.exists():
                raise StoreError(f"{target} is there already; a saved task is never changed.",
                                 hint="Choose another folder.") from error  # fmt: skip
            raise cannot_write(target, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return saved

    def _write_whole(self, folder: Path) -> Task:
        """Write the files, and those of the tasks that it is made of."""
        saved = self.write(folder)
        for number, part in enumerate(self.parts.values()):
            part._write_whole(folder / PARTS / str(number))
        return Task(saved.record, saved.tensors, self.parts)

    def write(self, folder: Path) -> Task:
        """Write the files into a new folder and sync them; `save` and the store then move it into place."""
        from safetensors.torch import save

        from adaptree.reports import card, figures

        data = save(_owned(self.tensors), metadata={"format": "pt"})
        record = dataclasses.replace(
            self.record,
            created=self.record.created or datetime.now(UTC).isoformat(timespec="seconds"),
            versions=self.record.versions or installed(),
            digest=hashlib.sha256(data).hexdigest(),
            file_bytes=len(data),
        )
        text = json.dumps(record.to_json(), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        folder.mkdir(parents=True)
        _write_file(folder / TENSORS, data)
        _write_file(folder / RECORD, (text + "\n").encode("utf-8", "backslashreplace"))  # a lone surrogate: \udc80
        _write_file(folder / CARD, card.write(record).encode("utf-8", "replace"))
        for name, figure in figures.figures(record).items():
            _write_file(folder / name, figure.encode())
        sync_folder(folder)
        return Task(record, self.tensors)

    @classmethod
    def load(cls, folder: str | Path, *, check: bool = True) -> Task:
        """Read a saved task; `check` compares the tensors' digest with the record's."""
        folder = Path(folder)
        task = read(folder, called=folder.name, check=check)
        within = sorted(path for path in (folder / PARTS).glob("*") if path.is_dir())
        parts = [cls.load(path, check=check) for path in within]
        return Task(task.record, task.tensors, {part.record.reference: part for part in parts})

    def __repr__(self) -> str:
        record = self.record
        what = f"{record.kind} into {len(record.labels)} labels" if record.labels else record.kind
        numbers = sum(tensor.numel() for tensor in self.weights.values())
        base = record.base.get("name", "?")
        return f"Task({record.reference}: {what}, {record.method} on {base}, {numbers:,} weights, {self.bytes:,} bytes)"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from adaptree.reports import page

        return page.page(self.record)


def read(folder: Path, *, called: str, check: bool = True) -> Task:
    """The task in a folder, under the name that its owner calls it by in errors."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    record = read_record(folder, called=called)
    data = _read_file(folder, TENSORS, called)
    if check and hashlib.sha256(data).hexdigest() != record.digest:
        short = f"{len(data):,} of {record.file_bytes:,} bytes" if len(data) < record.file_bytes else "wrong digest"
        raise corrupt(called, TENSORS, short)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise corrupt(called, TENSORS, str(error)) from error
    # torch's own memory is aligned, the file's is not: with it a product's last bits could differ from the trained ones
    return Task(record, {name: tensor.clone() for name, tensor in tensors.items()})


def read_record(folder: Path, *, called: str) -> Record:
    """The record alone, its checksum verified."""
    try:
        values = json.loads(_read_file(folder, RECORD, called))
    except (ValueError, RecursionError) as error:
        raise corrupt(called, RECORD, f"broken JSON ({error})") from error
    if not isinstance(values, dict):
        raise corrupt(called, RECORD, "not a record")
    return Record.from_json(values, called=called)


def corrupt(called: str, file: str, why: str) -> TaskCorrupt:
    """The error for a damaged file of a task; with a version in its name the task lies in a store."""
    remove = f"remove it (adaptree remove {called})" if "@" in called else "remove the folder"
    return TaskCorrupt(
        f"task '{called}' is damaged: {file}: {why}.",
        hint=f"Restore the file from a copy, or {remove} and train again.",
    )


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The error for a place that cannot be written, with the reason that the system gives."""
    first = {
        errno.ENOSPC: "Free some space",
        errno.EDQUOT: "Free some of your quota",
        errno.EACCES: "Make the folder writable",
        errno.EPERM: "Make the folder writable",
        errno.EROFS: "Make the folder writable",
    }.get(error.errno or 0, "See that it is a folder on a sound disk")
    return StoreError(
        f"cannot write {path}: {error.strerror or error}. Nothing was changed.",
        hint=f"{first}, or choose another (--store DIR, or ADAPTREE_STORE).",
    )


def installed() -> dict[str, str]:
    """The versions that made a task, read without importing the packages."""
    found = {"python": platform.python_version()}
    for package in ("adaptree", "torch", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut (Windows has no such call)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _owned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share no memory, as safetensors asks; only those that do are copied."""
    owned: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes
        seen.add(storage.data_ptr())
        owned[name] = tensor.clone() if shared else tensor
    return owned


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_file(folder: Path, name: str, called: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError as error:
        if folder.is_dir():
            raise corrupt(called, name, "the file is missing") from error
        raise TaskNotFound(f"no task in {folder}: there is no such folder.", hint="adaptree list") from error
    except OSError as error:
        raise StoreError(f"cannot read {folder / name}: {error.strerror or error}.",
                         hint="Make the file readable.") from error  # fmt: skip
