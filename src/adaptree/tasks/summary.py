"""A task in one line: what `adaptree list` and `history` show of its record, and the texts that `search` reads."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptree.errors import AdaptreeError
from adaptree.tasks.record import FUSES, MADE_OF, ON, TENSORS, Record, corrupt, read_record
from adaptree.tasks.signing import checked_signatures

LONGEST_TEXT = 2000
"""Characters of each text that is searched."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A line of `adaptree list`; a damaged task has only a name, a version and a problem."""

    name: str
    version: int
    versions: int = 1
    kind: str = ""
    method: str = ""
    base: str = ""
    fingerprint: str = ""
    """of the base"""
    metric: str = ""
    score: float | None = None
    """on the test part, or on validation where there is no test"""
    trained: int = 0
    trained_percent: float = 0.0
    bytes: int = 0
    created: str = ""
    signed_by: str = ""
    """public keys whose signatures hold, with spaces between; `adaptree.tasks.signing.owner` knows whose they are"""
    tags: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """A version as the index keeps it."""

    summary: Summary
    text: str = ""
    """What `search` reads, as JSON (`search_text`); empty where it was not asked for."""
    stamp: str = ""
    """A digest of all that the summary and the text are made from."""
    seen: str = ""
    """The identity, size and time of change of those files when they were read; empty if that would prove nothing."""


def read_row(folder: Path, name: str, version: int, tags: Sequence[str] = (), notes: Sequence[str] = ()) -> Row:
    """Return a version's summary and its texts from its record, or a summary that says what is wrong with it.

    `name`, `version`, `tags` and `notes` are those that it has in the store.
    """
    called = f"{name}@{version}"
    try:
        record = read_record(folder, called=called)
        size = file_size(folder / TENSORS)
        if size != record.file_bytes:
            why = "the file is missing" if size < 0 else f"{size:,} bytes, not {record.file_bytes:,}"
            raise corrupt(called, TENSORS, why)
        signed_by = " ".join(signature.public for signature in checked_signatures(folder, called=called))
    except AdaptreeError as error:
        return Row(Summary(name=name, version=version, problem=error.what))
    found = row_of(record, name, version, tags, notes)
    return replace(found, summary=replace(found.summary, signed_by=signed_by))


def row_of(record: Record, name: str, version: int, tags: Sequence[str] = (), notes: Sequence[str] = ()) -> Row:
    """Return the summary and the texts of a version whose record is sound."""
    metric, score = _main_score(record)
    summary = Summary(
        name=name,
        version=version,
        kind=record.kind,
        method=record.method,
        base=str(record.base.get("name", "")),
        fingerprint=str(record.base.get("fingerprint", "")),
        metric=metric,
        score=score,
        trained=record.parameters.get("trained", 0),
        trained_percent=float(record.trained_percent),
        bytes=record.file_bytes,
        created=record.created,
        tags=tuple(tags),
    )
    return Row(summary, search_text(record, name, tags, notes))


def file_size(path: Path) -> int:
    """Return a file's bytes, or -1 if it cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def search_text(record: Record, name: str, tags: Iterable[str] = (), notes: Iterable[str] = ()) -> str:
    """Return the texts of a version that can be searched, as a JSON object by what they are; `fields` reads it."""
    made_of = " ".join(str(record.extra[key]) for key in (ON, FUSES, MADE_OF) if record.extra.get(key))
    texts = {
        "name": name,
        "tags": " ".join(tags),
        "labels": ", ".join(map(str, record.labels)),
        "kind": record.kind,
        "method": record.method,
        "base": str(record.base.get("name", "")),
        "data": str(record.data.get("name", "")),
        "made of": made_of,
        "notes": " · ".join(notes),
        "examples": " · ".join(text for example in record.examples for text in _strings(_without_answer(example))),
    }
    short = {field: unicodedata.normalize("NFKC", text[:LONGEST_TEXT]) for field, text in texts.items() if text}
    return json.dumps(short, ensure_ascii=False).encode("utf-8", "replace").decode()


def fields(text: str) -> dict[str, str]:
    """Return the texts that `search_text` wrote, by what they are: name, labels, method, …"""
    return dict(json.loads(text))


def _without_answer(example: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in example.items() if key not in ("label", "gold")}


def _strings(value: Any) -> Iterator[str]:
    """Yield every text inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _main_score(record: Record) -> tuple[str, float | None]:
    """Return the metric that chose the best epoch, or the kind's main one, and its value."""
    metric = str(record.settings.get("metric") or "")
    if not metric:  # a list of many tasks need not import their kinds
        from adaptree.kinds import main_metric

        metric = main_metric(record)
    scores = record.metrics.get("test") or record.metrics.get("validation") or {}
    score = scores.get(metric)
    return metric, None if score is None else float(score)
