"""The index: a row for each version, which `list` and `search` read instead of every record; a cache and nothing more.

It is a SQLite file in the user's cache folder, or a PostgreSQL database that several machines share. The versions'
folders are the truth: a row counts only while the files that it was made from are unchanged (`Row.stamp`, `Row.seen`)
and its own checksum holds. A damaged file is replaced, and one that is locked or cannot be written is done without.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import StoreError, UsageError
from adaptree.tasks import cache_folder
from adaptree.tasks.summary import Row, Summary

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Table

SCHEMA = 1
"""In the tables' names; a table of another number is dropped when this one's are made."""
PREFIX = "adaptree_index"
Key = tuple[str, int]
"""A task's name and a version."""
COLUMNS = ("kind", "method", "base", "fingerprint", "metric", "score", "trained", "trained_percent", "bytes", "created",
           "signed_by")  # fmt: skip
"""Fields of a summary that are columns under their own names."""

LOCK = 0xADA97
"""The number of PostgreSQL's advisory lock; only one process writes at a time, as in SQLite."""
PATIENCE = {"sqlite": 1.0, "postgresql": 5}
"""Seconds to wait for a file that another process holds, or for a server."""
_NOT_DAMAGED = frozenset({  # another process holds the file, or the folder cannot be written
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL,
})  # fmt: skip
_NO_TABLE, _NO_COLUMN = "42P01", "42703"
"""What PostgreSQL calls these errors."""


class Index:
    """The cached rows of one store, and the vectors of its tasks' texts.

    `store` is the store's address, since several may share a database. `url` is postgresql://…; without one it is
    ADAPTREE_INDEX, and without that a file in the cache folder.
    """

    def __init__(self, store: str, url: str | None = None) -> None:
        self.store = store.encode("utf-8", "backslashreplace").decode()
        self._asked = url or os.environ.get("ADAPTREE_INDEX") or ""

    @property
    def server(self) -> str:
        """The URL of the server that has the index, as it was given; '' for a file."""
        return self._asked

    # rows

    def rows(self, *, text: bool = False) -> dict[Key, Row]:
        """Return every row, by name and version, with `text` what is searched too; none at all if one is damaged."""
        from sqlalchemy import select

        table = self._tables["rows"]
        wanted = [column for column in table.c if column.name != "store" and (text or column.name != "text")]
        mine = table.c.store == self.store
        rows = [_row(values, text) for values in self._read(select(*wanted).where(mine))]
        whole = [row for row in rows if row is not None]
        if len(whole) < len(rows):
            self._write(lambda db: db.execute(table.delete().where(mine)))
            return {}
        return {(row.summary.name, row.summary.version): row for row in whole}

    def update(self, rows: Iterable[Row] = (), seen: Mapping[Key, str] | None = None, gone: Iterable[Key] = ()) -> None:
        """Write these rows, put what was seen of others up to date, and delete those of versions that are gone."""
        from sqlalchemy import and_, bindparam

        table = self._tables["rows"]
        new = [_values(self.store, row) for row in rows if _can_be_kept(row)]
        one = and_(
            table.c.store == self.store, table.c.name == bindparam("_name"), table.c.version == bindparam("_version")
        )
        again = [{"_name": name, "_version": version, "_seen": now} for (name, version), now in (seen or {}).items()]
        old = [{"_name": name, "_version": version} for name, version in gone]

        def write(db: Connection) -> None:
            if new:
                db.execute(self._upsert(table), new)
            if again:
                db.execute(table.update().where(one).values(seen=bindparam("_seen")), again)
            if old:
                db.execute(table.delete().where(one), old)

        self._write(write)

    # vectors

    def vectors(self, prefix: str) -> dict[str, bytes]:
        """Return every vector whose key begins so and whose checksum holds."""
        from sqlalchemy import select

        table = self._tables["vectors"]
        mine = table.c.store == self.store, table.c.key.startswith(prefix, autoescape=True)
        found = self._read(select(table.c.key, table.c.vector).where(*mine))
        return {key: vector[:-4] for key, vector in found if _checksum(vector[:-4]) == vector[-4:].hex()}

    def keep_vectors(self, new: Mapping[str, bytes], gone: Iterable[str] = ()) -> None:
        """Write vectors by their keys, and delete others."""
        from sqlalchemy import bindparam

        table = self._tables["vectors"]
        rows = [
            {"store": self.store, "key": key, "vector": vector + bytes.fromhex(_checksum(vector))}
            for key, vector in new.items()
        ]
        old = [{"_key": key} for key in gone]

        def write(db: Connection) -> None:
            if rows:
                db.execute(self._upsert(table), rows)
            if old:
                db.execute(table.delete().where(table.c.store == self.store, table.c.key == bindparam("_key")), old)

        self._write(write)

    def clear(self) -> None:
        """Delete the file, or the tables of a server; the next listing fills them again."""
        if self._file is None:
            self._write(self._tables["rows"].metadata.drop_all)
        else:
            for ending in ("-journal", ""):
                with suppress(OSError):
                    Path(f"{self._file}{ending}").unlink()

    # the database

    @property
    def _file(self) -> Path | None:
        """Return SQLite's file; None where a server has the index."""
        if self._asked:
            return None
        name = hashlib.sha256(self.store.encode()).hexdigest()[:32]
        return cache_folder.folder() / "index" / f"{name}.sqlite"

    @cached_property
    def _url(self) -> URL:
        from sqlalchemy.engine import make_url

        if self._file is not None:
            return make_url("sqlite://").set(database=str(self._file))
        return server_url(self._asked)

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import NullPool, create_engine

        options: dict[str, Any] = {"poolclass": NullPool, "pool_reset_on_return": None}
        if self._file is not None:
            return create_engine(self._url, connect_args={"timeout": PATIENCE["sqlite"]}, **options)
        try:
            return create_engine(self._url, connect_args={"connect_timeout": PATIENCE["postgresql"]}, **options)
        except ImportError:
            raise needs_psycopg() from None

    @cached_property
    def _tables(self) -> dict[str, Table]:
        from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Table, Text

        metadata = MetaData()
        types = {"score": Double, "trained": BigInteger, "trained_percent": Double, "bytes": BigInteger}
        rows = Table(
            f"{PREFIX}_rows_{SCHEMA}",
            metadata,
            *(Column(name, Text, primary_key=True) for name in ("store", "name")),
            Column("version", BigInteger, primary_key=True, autoincrement=False),
            *(Column(name, types.get(name, Text)) for name in COLUMNS),
            *(Column(name, Text) for name in ("tags", "stamp", "checksum", "seen", "text")),
        )
        vectors = Table(
            f"{PREFIX}_vectors_{SCHEMA}",
            metadata,
            *(Column(name, Text, primary_key=True) for name in ("store", "key")),
            Column("vector", LargeBinary),
        )
        return {"rows": rows, "vectors": vectors}

    def _upsert(self, table: Table) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        insert = (sqlite.insert if self._file is not None else postgresql.insert)(table)
        new = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
        return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=new)

    def _read(self, query: Any) -> list[Any]:
        """Return what a query finds; nothing if the index cannot be read now, or is damaged: then it is deleted."""
        from sqlalchemy.exc import SQLAlchemyError

        if self._file is not None and not self._file.exists():
            return []
        try:
            with self._engine.connect() as db:
                return list(db.execute(query))
        except (SQLAlchemyError, ValueError, TypeError) as error:
            if not self._is_whole(error):
                self.clear()
            return []

    def _write(self, do: Callable[[Connection], object]) -> None:
        """Call `do` in one transaction that holds the index; what SQLite refuses now, the next listing writes."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._engine.connect() as db:
                hold = "BEGIN IMMEDIATE" if self._file is not None else f"SELECT pg_advisory_xact_lock({LOCK})"
                db.execute(text(hold))
                self._make_tables(db)
                do(db)
                db.commit()
        except (SQLAlchemyError, ValueError, TypeError, OSError) as error:
            if not self._is_whole(error):
                self.clear()

    def _make_tables(self, db: Connection) -> None:
        """Make the tables if they are not there, and drop those of another schema."""
        from sqlalchemy import MetaData, Table, inspect

        ours = {table.name for table in self._tables.values()}
        there = {name for name in inspect(db).get_table_names() if name.startswith(f"{PREFIX}_")}
        if not ours <= there:
            for name in there - ours:
                Table(name, MetaData()).drop(db)
            self._tables["rows"].metadata.create_all(db)

    def _is_whole(self, error: Exception) -> bool:
        """Return whether an index is whole though it gave this error; raise StoreError if a server refuses."""
        cause = getattr(error, "orig", error)
        if self._file is not None:
            return isinstance(error, OSError) or getattr(cause, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED
        state = getattr(cause, "sqlstate", None)
        if state not in (_NO_TABLE, _NO_COLUMN):
            why = " ".join(str(cause).split())
            raise StoreError(
                f"the index {self._url.set(drivername='postgresql').render_as_string()} cannot be used: {why[:200]}",
                hint="Start or correct it (--index, ADAPTREE_INDEX), or leave it out: it is only a cache.",
            ) from error
        return bool(state == _NO_TABLE)


def server_url(asked: str) -> URL:
    """Return the address of a PostgreSQL server; raise UsageError if it is none."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(asked)
        if url.get_backend_name() == "postgresql":
            return url.set(drivername="postgresql+psycopg")
    except ArgumentError:
        pass
    raise UsageError(  # without the address, which may have a password in it
        "the index can only be in PostgreSQL, or in a file that adaptree chooses.",
        hint="Give --index (or ADAPTREE_INDEX) as postgresql://USER@HOST/DATABASE, or leave it out.",
    )


def needs_psycopg() -> StoreError:
    return StoreError("an index in PostgreSQL needs the package psycopg.", hint="pip install 'adaptree[postgres]'")


def _values(store: str, row: Row) -> dict[str, Any]:
    """Return a row as the database has it."""
    summary = row.summary
    columns = {name: getattr(summary, name) for name in COLUMNS}
    tags = " ".join(summary.tags)
    return {
        "store": store, "name": summary.name, "version": summary.version, **columns, "tags": tags, "stamp": row.stamp,
        "checksum": _checksum((summary.name, summary.version, *columns.values(), tags, row.stamp)),
        "seen": row.seen, "text": _checksum(row.text) + row.text,
    }  # fmt: skip


def _row(values: Any, text: bool) -> Row | None:
    """Return the row of the database's values; None if it is damaged."""
    *checked, checksum, seen = values[: len(COLUMNS) + 6]
    if _checksum(tuple(checked)) != checksum or not isinstance(seen, str):
        return None
    name, version, *columns, tags, stamp = checked
    summary = Summary(name=name, version=version, tags=tuple(tags.split()), **dict(zip(COLUMNS, columns, strict=True)))
    if not text:
        return Row(summary, "", stamp, seen)
    checksum, searched = str(values[-1])[:8], str(values[-1])[8:]
    return Row(summary, searched, stamp, seen) if _checksum(searched) == checksum else None


def _can_be_kept(row: Row) -> bool:
    """Return whether a database can hold a row: no number beyond 64 bits, no text that is not Unicode or has a NUL."""
    for value in _values("", row).values():
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            return False
        if isinstance(value, str):
            try:
                if b"\0" in value.encode():
                    return False
            except UnicodeEncodeError:
                return False
    return True


def _checksum(value: Any) -> str:
    return f"{zlib.crc32(value if isinstance(value, bytes) else repr(value).encode('utf-8', 'replace')):08x}"
