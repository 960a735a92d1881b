"""A task in one line: what `adaptree list` and `history` show of its record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from adaptree.errors import AdaptreeError
from adaptree.reports.json_text import json_text
from adaptree.tasks.record import RECORD, TENSORS, Record, corrupt, read_record


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A line of `adaptree list`; a damaged task has only a name, a version and a problem."""

    name: str
    version: int
    versions: int = 1
    kind: str = ""
    method: str = ""
    base: str = ""
    metric: str = ""
    score: float | None = None
    """on the test part, or on validation where there is no test"""
    trained: int = 0
    trained_percent: float = 0.0
    bytes: int = 0
    created: str = ""
    problem: str = ""


def summarise(folder: Path, name: str, version: int) -> Summary:
    """Return a version's summary from its record, or one that says what is wrong with it."""
    called = f"{name}@{version}"
    try:
        record = read_record(folder, called=called)
        size = _size(folder / TENSORS)
        if size != record.file_bytes:
            why = "the file is missing" if size < 0 else f"{size:,} bytes, not {record.file_bytes:,}"
            raise corrupt(called, TENSORS, why)
    except AdaptreeError as error:
        return Summary(name=name, version=version, problem=error.what)
    metric, score = _main_score(record)
    return Summary(
        name=name,
        version=version,
        kind=record.kind,
        method=record.method,
        base=str(record.base.get("name", "")),
        metric=metric,
        score=score,
        trained=record.parameters.get("trained", 0),
        trained_percent=record.trained_percent,
        bytes=record.file_bytes,
        created=record.created,
    )


def _main_score(record: Record) -> tuple[str, float | None]:
    """Return the metric that chose the best epoch, or the kind's main one, and its value."""
    metric = str(record.settings.get("metric") or "")
    if not metric:  # a list of many tasks need not import their kinds
        from adaptree.kinds import main_metric

        metric = main_metric(record)
    scores = record.metrics.get("test") or record.metrics.get("validation") or {}
    return metric, scores.get(metric)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def stamp(folder: Path) -> str:
    """Return a digest of all that a summary is made from: the record's bytes, and the size of the tensors.

    Times and sizes would not do: a file may be replaced by one of the same size, with its time set back.
    """
    try:
        record = hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()
    except OSError:
        record = "-"
    return f"{record} {_size(folder / TENSORS)}"


def to_cache(summary: Summary) -> str:
    """Return a summary as the index keeps it."""
    return json_text(asdict(summary))


def from_cache(body: str) -> Summary | None:
    """Return a cached summary; None if it cannot be read."""
    try:
        return Summary(**json.loads(body))
    except (ValueError, TypeError):
        return None
