"""A job, as it is in the database and as a client sees it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from adaptree.errors import AdaptreeError

QUEUED, RUNNING, DONE, FAILED, CANCELLED = STATES = ("queued", "running", "done", "failed", "cancelled")
ENDED = (DONE, FAILED, CANCELLED)
MORE_FILES = ("validation", "test", "descriptions")
"""What a job may have beside the file that it is trained on, as `adaptree train` calls it."""
NOTHING, BEST = KEEP = ("nothing", "best")
"""What is kept of a job that is cancelled: nothing, or its best epoch so far."""


class JobNotFound(AdaptreeError):
    """No such job, or not of this tenant."""


class FileNotHere(AdaptreeError):
    """No such upload, or not of this tenant."""


class JobConflict(AdaptreeError):
    """What is asked for cannot be done in the state that a job is in."""


class OverQuota(AdaptreeError):
    """A tenant has as much as it may."""


class LeaseLost(AdaptreeError):
    """Another worker has the job: this one must not touch it any more."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of the queue."""

    number: int
    id: str
    tenant: str
    name: str
    """The task's whole name."""
    state: str
    base: str
    """The fingerprint of the base that it is to be trained on."""
    settings: dict[str, Any]
    file: str
    file_name: str
    more_files: dict[str, str]
    """Uploads beside `file`, by what they are: validation, test, descriptions."""
    keep_data: bool
    token: str
    """Of the worker that has it, or had it last."""
    worker: str
    cancel: str
    """'' unless somebody asked to end it; else what is kept."""
    progress: dict[str, Any]
    error: dict[str, str] | None
    task: str
    metrics: dict[str, Any] | None
    attempts: int
    deaths: int
    """How many workers died over it since it last got any further."""
    version: int
    """The version's number that was reserved for its task; 0 before that."""
    events: int
    """The number of its last event."""
    rows: int
    bytes: int
    seconds: float
    most_running: int
    most_seconds: int
    created: float
    started: float | None
    begun: float | None
    """When a worker last began with it."""
    finished: float | None
    lease: float | None
    position: int | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """What the record of its task keeps, by which a version that was published is known again."""
        return hashlib.sha256(f"job {self.id}".encode()).hexdigest()

    @property
    def uploads(self) -> tuple[str, ...]:
        """The ids of all its files."""
        return self.file, *self.more_files.values()

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def bill(self) -> dict[str, Any]:
        """What it cost: rows of its data, seconds of workers, bytes of its files."""
        return {"rows": self.rows, "seconds": round(self.seconds, 3), "bytes": self.bytes}

    def to_json(self) -> dict[str, Any]:
        """Return what a client sees."""
        return {
            "id": self.id,
            "tenant": self.tenant,
            "name": self.name,
            "state": self.state,
            "settings": self.settings,
            "file": self.file,
            "file_name": self.file_name,
            "more_files": self.more_files,
            "keep_data": self.keep_data,
            "created": moment(self.created),
            "started": moment(self.started),
            "finished": moment(self.finished),
            "position": self.position,
            "progress": self.progress or None,
            "attempts": self.attempts,
            "cancel": self.cancel or None,
            "error": self.error,
            "task": self.task or None,
            "metrics": self.metrics,
            "bill": self.bill,
        }


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job: a note, progress, an epoch, or another state."""

    number: int
    event: str
    data: dict[str, Any]
    time: float


def job_of(row: Any) -> Job:
    """Return the job of a row of the database."""
    values = {f.name: getattr(row, f.name) for f in fields(Job) if f.name != "position"}
    for name in ("settings", "more_files", "progress", "error", "metrics"):
        empty: Any = None if name in ("error", "metrics") else {}
        values[name] = json.loads(values[name]) if values[name] else empty
    return Job(**{**values, "keep_data": bool(values["keep_data"])})


def moment(seconds: float | None) -> str | None:
    """Return a time as clients read it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
