"""What one request may cost: sizes, counts and times, each with a default that `adaptree serve` can change."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from adaptree.errors import UsageError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a request and of a connection."""

    body: int = 8_000_000
    """Bytes of a request's body."""
    upload: int = 1_000_000_000
    """Bytes of a bundle, or of a job's data file."""
    line: int = 1_000_000
    """Bytes of a line of NDJSON; a body of lines has no limit of its own, as it is never in memory as a whole."""
    items: int = 1024
    """Inputs of one request."""
    characters: int = 100_000
    """Characters of one text."""
    headers: int = 32_768
    """Bytes of a request's first line and headers."""
    receive: float = 30.0
    """Seconds in which the headers, each further piece of a body, or the taking of an answer must come."""
    timeout: float = 30.0
    """Seconds after which a request that was not computed is given up, unless it asks for less."""
    in_flight: int = 1024
    """Requests that are under way at once."""
    window: int = 256
    """Lines of an NDJSON request that are under way at once."""

    jobs_queued: int = 20
    """Jobs of a tenant that wait."""
    jobs_running: int = 2
    """Jobs of a tenant that run at once."""
    job_rows: int = 1_000_000
    """Rows of a job's data file."""
    rows_a_day: int = 5_000_000
    """Rows of all jobs that a tenant sends in 24 hours."""
    job_seconds: int = 6 * 3600
    """Seconds that a worker spends on a job; then its best epoch so far is kept."""
    stored: int = 5_000_000_000
    """Bytes of the data files that a tenant has here."""
    check: float = 120.0
    """Seconds that the check of a data file may take."""
    streams: int = 256
    """Clients that follow jobs' events at once."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise UsageError(f"{each.name} must be above 0, not {getattr(self, each.name)}.")


def parse_size(text: str) -> int:
    """Return the bytes that '2GB', '500 MB', '1GiB' or '4096' mean; raise UsageError for anything else."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"'{text}' is no size.", hint="Give bytes, or a unit: 500MB, 2GB, 1GiB.")
    number, unit, binary = found.groups()
    factor = UNITS[unit.lower()]
    if binary and factor > 1:
        factor = 1024 ** "kmgt".index(unit.lower()) * 1024
    size = int(float(number) * factor)
    if size <= 0:
        raise UsageError(f"'{text}' is no size.", hint="Give bytes, or a unit: 500MB, 2GB, 1GiB.")
    return size
