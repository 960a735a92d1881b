"""What a server counts: requests and texts of each key, the use of each task, and figures.

A server of one process counts in memory. The processes of `adaptree serve --workers N` share a small SQLite file, which
their parent makes when it starts and removes when it ends: a limit holds for all of them together, and whichever is
asked for figures answers for all. What keys have used of their quotas of a day is in another file, in the store's
folder: it outlives the server, and holds for all servers over that folder.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.errors import StoreError

DAY = 86_400
MOST = 100_000
"""Tasks whose use is counted; the one that was asked longest ago goes first."""
_TABLES = """
CREATE TABLE IF NOT EXISTS started (only INTEGER PRIMARY KEY, at REAL);
CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, whole_at REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (task TEXT PRIMARY KEY, requests INTEGER, texts INTEGER, last REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS figures (process INTEGER PRIMARY KEY, figures TEXT);
"""
_QUOTAS = "CREATE TABLE IF NOT EXISTS texts (key TEXT PRIMARY KEY, day INTEGER, texts INTEGER) WITHOUT ROWID"
_USE = """
INSERT INTO used VALUES (?, 1, ?, ?) ON CONFLICT (task)
DO UPDATE SET requests = requests + 1, texts = texts + excluded.texts, last = excluded.last
"""
_ENDED = 0
"""The process under whose number the sums of those that have ended are."""


@dataclass
class Used:
    """What a task was asked."""

    requests: int = 0
    texts: int = 0
    last: float = 0.0
    """Seconds since 1970."""


class Counts:
    """Counts in a file that other processes may share, or without one in memory; safe for any number of threads.

    `quotas` is the file of what keys have used of their quotas, if that is to outlive the others.
    """

    def __init__(self, file: Path | None = None, quotas: Path | None = None) -> None:
        self.shared = file is not None
        self._lock = threading.Lock()
        self._db = _open(file, _TABLES + _QUOTAS)
        self._db.execute("PRAGMA synchronous=OFF")  # the file need not survive the machine
        try:
            self._quotas = self._db if quotas is None else _open(quotas, _QUOTAS)
        except sqlite3.Error as error:
            self._db.close()
            raise StoreError(
                f"what keys have used of their quotas cannot be kept in '{quotas}': {error}.",
                hint="If the file is damaged, delete it: the day's quotas begin anew.",
            ) from error
        with self._change() as db:
            db.execute("INSERT OR IGNORE INTO started VALUES (1, ?)", (time.time(),))
            self.since: float = db.execute("SELECT at FROM started").fetchone()[0]
        self._unchecked = 0

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._quotas.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            self._db.close()
            self._quotas.close()

    @contextmanager
    def _change(self, db: sqlite3.Connection | None = None) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that no other process or thread comes between."""
        db = db or self._db
        with self._lock:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    # Keys

    def take_request(self, key: str, rate: float) -> float:
        """Count a request of a key that has `rate` of them a second; return 0, or the seconds to wait for the next.

        The key has a bucket of max(1, rate) tokens, and a request takes one: `whole_at` is when it is full again.
        """
        now = time.monotonic()  # of the machine, so that processes agree
        with self._change() as db:
            row = db.execute("SELECT whole_at FROM requests WHERE key = ?", (key,)).fetchone()
            whole_at = max(now, row[0] if row else now)
            tokens = max(1.0, rate) - (whole_at - now) * rate
            if tokens < 1:
                return (1 - tokens) / rate
            db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?)", (key, whole_at + 1 / rate))
        return 0.0

    def take_texts(self, key: str, quota: int, texts: int) -> int | None:
        """Count texts of a key that has `quota` of them a day, from midnight UTC; return None, or how many are left."""
        day = int(time.time() // DAY)
        with self._change(self._quotas) as db:
            row = db.execute("SELECT texts FROM texts WHERE key = ? AND day = ?", (key, day)).fetchone()
            before = row[0] if row else 0
            if before + texts > quota:
                return max(0, quota - before)
            if row is None:
                db.execute("DELETE FROM texts WHERE day < ?", (day,))
            db.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", (key, day, before + texts))
        return None

    # Tasks

    def use(self, texts: Mapping[str, int]) -> None:
        """Count requests by their tasks' names in the store: without a version, or a composition as it was asked."""
        now = time.time()
        rows = [(task if "(" in task else task.partition("@")[0], count, now) for task, count in texts.items()]
        with self._change() as db:
            db.executemany(_USE, rows)
            self._unchecked += len(rows)
            if self._unchecked >= MOST // 100:
                self._unchecked = 0
                db.execute(
                    "DELETE FROM used WHERE task IN (SELECT task FROM used ORDER BY last DESC LIMIT -1 OFFSET ?)",
                    (MOST,),
                )

    def used(self, task: str) -> Used:
        """Return what a task was asked."""
        with self._lock:
            row = self._db.execute("SELECT requests, texts, last FROM used WHERE task = ?", (task,)).fetchone()
        return Used(*row) if row else Used()

    def most_used(self) -> dict[str, int]:
        """Return how many requests each task had, for all that had any."""
        with self._lock:
            return dict(self._db.execute("SELECT task, requests FROM used"))

    # Figures

    def publish(self, figures: Mapping[str, Any]) -> None:
        """Say this process's figures, {"total": …, "now": …}, for the others to add to their own."""
        with self._change() as db:
            db.execute("INSERT OR REPLACE INTO figures VALUES (?, ?)", (os.getpid(), json.dumps(figures)))

    def of_others(self) -> dict[str, Any]:
        """Return the sum of the other processes' figures as they last said them; of one that has ended, its totals."""
        with self._change() as db:
            rows = {process: json.loads(text) for process, text in db.execute("SELECT * FROM figures")}
            ended = {process for process in rows if process != _ENDED and not _is_alive(process)}
            if ended:
                totals = [rows.pop(process)["total"] for process in (_ENDED, *ended) if process in rows]
                rows[_ENDED] = {"total": added(*totals)}
                db.executemany("DELETE FROM figures WHERE process = ?", [(process,) for process in ended])
                db.execute("INSERT OR REPLACE INTO figures VALUES (?, ?)", (_ENDED, json.dumps(rows[_ENDED])))
        rows.pop(os.getpid(), None)
        return added(*rows.values()) if rows else {}


def _open(file: Path | None, tables: str) -> sqlite3.Connection:
    """Return a connection to a database with these tables: a file, or without one in memory."""
    db = sqlite3.connect(file or ":memory:", timeout=10, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")  # a process may be killed at any moment
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(tables)
    except sqlite3.Error:
        db.close()
        raise
    return db


def added(*values: Any) -> Any:
    """Return the sum of numbers, or of lists or dicts of them by their places."""
    first = values[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: added(*(value[name] for value in values if name in value)) for name in names}
    if isinstance(first, list):
        return [added(*each) for each in zip(*values, strict=True)]
    return math.fsum(values) if isinstance(first, float) else sum(values)


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is none
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
