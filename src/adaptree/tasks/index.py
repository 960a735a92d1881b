"""A cache of the tasks' summaries in one SQLite file; what it says is used only while a task's files are unchanged."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

SCHEMA = 1
_ELSEWHERE = frozenset({  # the file may be sound: another process holds it, or the folder cannot be written
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL,
})  # fmt: skip
Row = tuple[str, str]
"""The stamp of a task's files, and its summary as JSON."""


class Index:
    """Rows by task name. A broken file is replaced; where it cannot be read or written there is no cache, only work."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Row]:
        """Everything that is cached."""
        try:
            with contextlib.closing(self._open()) as db:
                found = db.execute("SELECT name, stamp, body FROM summary")
                return {name: (stamp, body) for name, stamp, body in found}
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _ELSEWHERE:
                self.clear()
            return {}

    def update(self, changed: Mapping[str, Row], gone: Iterable[str]) -> None:
        """Put the changed rows in and take the gone ones out."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._open()) as db, db:
            db.executemany(
                "INSERT OR REPLACE INTO summary (name, stamp, body) VALUES (?, ?, ?)",
                [(name, stamp, body) for name, (stamp, body) in changed.items()],
            )
            db.executemany("DELETE FROM summary WHERE name = ?", [(name,) for name in gone])

    def clear(self) -> None:
        """Forget everything; the next listing fills it again."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=1.0)
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:  # another process was not quicker
                        db.execute("DROP TABLE IF EXISTS summary")
                        db.execute("CREATE TABLE summary (name TEXT PRIMARY KEY, stamp TEXT, body TEXT) WITHOUT ROWID")
                        db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db
