"""A task: a dict of tensors plus a small record, and the folder that holds both.

    task.json          the record, with a checksum over itself and the digest of the tensors
    task.safetensors   all of v, and the probe inputs' logits ('probe.logits')
    README.md, *.svg   the card and its figures, written from the record; they may be lost
    SHA256SUMS         the digests of these files
    parts/             the tasks that it needs; in a store these have folders of their own

The folder is written beside its place and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.errors import StoreError
from adaptree.reports.json_text import json_text
from adaptree.tasks.digests import SUMS, sums_text
from adaptree.tasks.files import TAKEN, cannot_write, sync, write_new
from adaptree.tasks.machine import here
from adaptree.tasks.record import RECORD, TENSORS, Record, corrupt, installed, read_file, read_record

if TYPE_CHECKING:
    import torch

CARD, PARTS = "README.md", "parts"
PROBE = "probe."
"""Tensors with this prefix are the probe's logits, not weights."""
TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


class Task:
    """A record and its tensors, contiguous and on the CPU (not copied if they already are).

    `parts` are the tasks that it needs to run, by the references in its record.
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
        """The size of the weights."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    def save(self, folder: str | Path) -> Task:
        """Write the task and its parts as a new folder, whole or not at all; return the task with its digest."""
        target = Path(folder)
        staging = target.parent / f".{target.name}-{uuid.uuid4().hex}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            saved = self._write_with_parts(staging)
            os.rename(staging, target)  # an empty folder is replaced, one with files in it is not
            sync(target.parent)
        except OSError as error:
            if error.errno in TAKEN and target.exists():
                raise StoreError(f"{target} is there already; a saved task is never changed.",
                                 hint="Choose another folder.") from error  # fmt: skip
            raise cannot_write(target, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return saved

    def _write_with_parts(self, folder: Path) -> Task:
        saved = self.write(folder)
        for number, part in enumerate(self.parts.values()):
            part._write_with_parts(folder / PARTS / str(number))
        return Task(saved.record, saved.tensors, self.parts)

    def write(self, folder: Path) -> Task:
        """Write the task's own files into a new folder and sync them; `save` and the store then move it into place."""
        from safetensors.torch import save

        if bad := not_finite(self.tensors):
            raise StoreError(
                f"the task '{self.record.name}' cannot be kept: '{bad}' has NaN or infinity in it.",
                hint="Train it again, with a smaller learning rate.",
            )
        data = save(_unshared(self.tensors), metadata={"format": "pt"})
        record = dataclasses.replace(
            self.record,
            created=self.record.created or datetime.now(UTC).isoformat(timespec="seconds"),
            versions=self.record.versions or installed(),
            machine=self.record.machine or ({} if self.record.versions else here()),
            digest=hashlib.sha256(data).hexdigest(),
            file_bytes=len(data),
        )
        text = json_text(record.to_json(), indent=1, sort_keys=True)
        files = {TENSORS: data, RECORD: (text + "\n").encode()}
        files |= shown(Record.from_json(json.loads(text)))  # as it will be read, so that it can be drawn again
        files[SUMS] = sums_text({name: hashlib.sha256(each).hexdigest() for name, each in files.items()}).encode()
        folder.mkdir(parents=True)
        for name, each in files.items():
            write_new(folder / name, each)
        sync(folder)
        return Task(record, self.tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Task:
        """Read a saved task and its parts, and verify their files."""
        folder = Path(folder)
        task = read_task(folder, called=folder.name)
        within = sorted(path for path in (folder / PARTS).glob("*") if path.is_dir())
        parts = [cls.load(path) for path in within]
        return Task(task.record, task.tensors, {part.record.reference: part for part in parts})

    def __repr__(self) -> str:
        record = self.record
        what = f"{record.kind} into {len(record.labels)} labels" if record.labels else record.kind
        numbers = sum(tensor.numel() for tensor in self.weights.values())
        base = record.base.get("name", "?")
        return f"Task({record.reference}: {what}, {record.method} on {base}, {numbers:,} weights, {self.bytes:,} bytes)"

    def _repr_html_(self) -> str:
        """Return the card as HTML, which a notebook shows."""
        from adaptree.reports import page

        return page.page(self.record)


def read_task(folder: Path, *, called: str) -> Task:
    """Read the task in a folder, without its parts, and verify its files; `called` is its name in errors."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    record = read_record(folder, called=called)
    data = read_file(folder, TENSORS, called, most=record.file_bytes)
    if hashlib.sha256(data).hexdigest() != record.digest:
        short = f"{len(data):,} of {record.file_bytes:,} bytes" if len(data) < record.file_bytes else "wrong digest"
        raise corrupt(called, TENSORS, short)
    try:
        loaded = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise corrupt(called, TENSORS, str(error)) from error
    # torch's own memory is aligned, the file's is not: with it a product's last bits could differ from the trained ones
    del data  # twice the file in memory at a time, and not three times
    tensors = {name: loaded.pop(name).clone() for name in list(loaded)}
    for name, tensor in tensors.items():
        if (kind := str(tensor.dtype).removeprefix("torch.")) not in TYPES:
            raise corrupt(called, TENSORS, f"'{name}' is of type {kind}, which no method has")
    if bad := not_finite(tensors):
        raise corrupt(called, TENSORS, f"'{bad}' has NaN or infinity in it")
    return Task(record, tensors)


def shown(record: Record) -> dict[str, bytes]:
    """Return the files that show a task to people, drawn from its record: the card and its figures, by name."""
    from adaptree.reports import card, figures

    drawn = {name: figure.encode() for name, figure in figures.figures(record).items()}
    return {CARD: card.write(record).encode("utf-8", "replace"), **drawn}


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinity in it; '' if all numbers are finite."""
    import torch

    for name, tensor in tensors.items():
        # A sum that is finite has no such term, and takes a tenth of the time.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            return name
    return ""


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors that share no memory, which safetensors requires; only those that do are copied."""
    unshared: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes
        seen.add(storage.data_ptr())
        unshared[name] = tensor.clone() if shared else tensor
    return unshared
