"""A cache of the tasks' summaries in one SQLite file; a row counts only while what it was made from is unchanged."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

SCHEMA = 1
_NOT_DAMAGED = frozenset({  # another process holds the file, or the folder cannot be written
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL,
})  # fmt: skip
Row = tuple[str, str]
"""The digest of what a summary is made from (`adaptree.tasks.summary.stamp`), and the summary as JSON."""


class Index:
    """Cached rows by task name. A damaged file is replaced; one that cannot be read or written is not used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Row]:
        """Return every cached row, by task name."""
        try:
            with contextlib.closing(self._open()) as db:
                found = db.execute("SELECT name, stamp, body FROM summary")
                return {name: (stamp, body) for name, stamp, body in found}
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NOT_DAMAGED:
                self.clear()
            return {}

    def update(self, changed: Mapping[str, Row], gone: Iterable[str]) -> None:
        """Write the changed rows and delete those of tasks that are gone."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._open()) as db, db:
            db.executemany(
                "INSERT OR REPLACE INTO summary (name, stamp, body) VALUES (?, ?, ?)",
                [(name, stamp, body) for name, (stamp, body) in changed.items()],
            )
            db.executemany("DELETE FROM summary WHERE name = ?", [(name,) for name in gone])

    def clear(self) -> None:
        """Delete the cache; the next listing fills it again."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=1.0)
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:  # no other process was quicker
                        db.execute("DROP TABLE IF EXISTS summary")
                        db.execute("CREATE TABLE summary (name TEXT PRIMARY KEY, stamp TEXT, body TEXT) WITHOUT ROWID")
                        db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db
