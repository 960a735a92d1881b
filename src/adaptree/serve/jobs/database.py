"""The database of a store's jobs, and of API keys: SQLite in the store's folder, or a PostgreSQL server.

Unlike the index it is the truth, so nothing here is ever dropped: tables of an earlier schema are upgraded
(`serve/migrations`), those of a newer one, or a damaged file, are an error that says so. Several stores may share a
server; each row has the id of its store.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adaptree.errors import AdaptreeError, StoreError, UsageError
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.index import needs_psycopg, server_url
from adaptree.tasks.store import JOBS

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

    from adaptree.tasks.store import Store

T = TypeVar("T")
SCHEMA = 3
"""The schema of the tables below, which the last of the migrations makes."""
PREFIX = "adaptree_jobs"
PATIENCE = 20.0
"""Seconds for which a database that is locked, or a server that does not answer, is tried again."""
LOCK = 0xADA10B
"""PostgreSQL's advisory lock under which tables are made and jobs are claimed."""


class Database:
    """Runs functions of a connection in transactions, again where a connection was lost."""

    def __init__(self, store: Store | None, url: str | None = None) -> None:
        """`store` may be None for what belongs to none, such as API keys; then there must be a `url`."""
        self._location = "" if store is None else store.location
        self._asked = url or ("" if store is None else store.index.server)
        self.folder = Path(JOBS) if store is None else store.path / JOBS
        """What this machine keeps of jobs: the database, if it is a file, data files, checkpoints."""
        if "://" in self._location and not self._asked:
            raise UsageError(
                f"jobs of the store {self._location} need PostgreSQL, as several machines may work on them.",
                hint="--index postgresql://USER@HOST/DATABASE, or ADAPTREE_INDEX.",
            )
        self._made = False
        self._making = threading.Lock()

    @property
    def file(self) -> Path | None:
        """SQLite's file; None where a server has the jobs."""
        return None if self._asked else self.folder / "jobs.sqlite"

    @cached_property
    def store(self) -> str:
        """The id by which a shared database knows the store: a folder may move, or have a host of another name."""
        if "://" in self._location:
            return self._location
        if self.file is not None:
            return ""
        path = self.folder / "id"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                partial = path.with_name(f".id-{uuid.uuid4().hex}")
                replace_file(partial, uuid.uuid4().hex.encode())
                try:
                    os.link(partial, path)  # of two processes, the first chooses
                except FileExistsError:
                    pass
                finally:
                    partial.unlink()
            return path.read_text()
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    @cached_property
    def tables(self) -> dict[str, Table]:
        from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text

        metadata = MetaData()
        long = BigInteger().with_variant(Integer(), "sqlite")  # only an INTEGER counts up by itself there

        def text(name: str) -> Any:
            return Column(name, Text, nullable=False, server_default="")

        def whole(name: str) -> Any:
            return Column(name, BigInteger, nullable=False, server_default="0")

        jobs = Table(
            PREFIX,
            metadata,
            Column("number", long, primary_key=True, autoincrement=True),
            Column("id", Text, nullable=False, unique=True),
            *map(text, ("store", "tenant", "name", "state", "base", "settings", "file", "file_name", "more_files")),
            *map(text, ("token", "worker", "cancel", "progress", "error", "task", "metrics")),
            *map(whole, ("keep_data", "attempts", "deaths", "version", "events", "rows", "bytes")),
            *map(whole, ("most_running", "most_seconds")),
            *(Column(name, Double) for name in ("created", "started", "begun", "finished", "lease")),
            Column("seconds", Double, nullable=False, server_default="0"),
            Index(f"{PREFIX}_by_state", "store", "state", "tenant", "number"),
            Index(f"{PREFIX}_by_tenant", "store", "tenant", "number"),
        )
        events = Table(
            f"{PREFIX}_events",
            metadata,
            Column("job", Text, primary_key=True),
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            *map(text, ("event", "data")),
            Column("time", Double, nullable=False),
        )
        files = Table(
            f"{PREFIX}_files",
            metadata,
            Column("id", Text, primary_key=True),
            *map(text, ("store", "tenant", "name", "sha256")),
            whole("bytes"),
            Column("created", Double, nullable=False),
            Column("expires", Double),
            Index(f"{PREFIX}_files_by_tenant", "store", "tenant"),
        )
        keys = Table(
            "adaptree_keys",
            metadata,
            Column("id", Text, primary_key=True),
            *(Column(name, Text, nullable=False) for name in ("hash", "tenant", "scopes", "note", "created")),
            Column("rate", Double, nullable=False),
            Column("quota", BigInteger, nullable=False),
        )
        schema = Table(f"{PREFIX}_schema", metadata, Column("schema", Integer, primary_key=True, autoincrement=False))
        return {"jobs": jobs, "events": events, "files": files, "keys": keys, "schema": schema}

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import create_engine, event
        from sqlalchemy.engine import make_url

        if self.file is None:
            try:
                return create_engine(
                    server_url(self._asked), pool_size=4, max_overflow=16, pool_pre_ping=True,
                    connect_args={"connect_timeout": 5},
                )  # fmt: skip
            except ImportError:
                raise needs_psycopg() from None
        url = make_url("sqlite://").set(database=str(self.file))
        engine = create_engine(url, pool_size=4, max_overflow=16, connect_args={"timeout": PATIENCE})

        @event.listens_for(engine, "connect")
        def durable(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # what was accepted survives a power cut

        return engine

    def dispose(self) -> None:
        """Close all connections; the next use opens new ones."""
        if "_engine" in self.__dict__:
            self._engine.dispose()

    # transactions

    def read(self, do: Callable[[Connection], T], nothing: T) -> T:
        """Return what `do` reads; `nothing` where there is no database yet."""
        if self.file is not None and not self._made and not self.file.exists():
            return nothing
        return self._with_connection(do)

    def rows(self, query: Any) -> list[Any]:
        """Return what a query finds; nothing where there is no database yet."""
        nothing: list[Any] = []
        return self.read(lambda db: list(db.execute(query)), nothing)

    def write(self, do: Callable[[Connection, float], T], *, alone: bool = False) -> T:
        """Return what `do` returns, which it does in one transaction; it is given the database's time.

        It may be called again if a connection is lost, also when it was done but the answer did not arrive. `alone`:
        of several processes, one at a time does so.
        """
        from sqlalchemy import text

        def whole(db: Connection) -> T:
            if self.file is not None:
                db.execute(text("BEGIN IMMEDIATE"))
            elif alone:
                db.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
            found = do(db, self._now(db))
            db.commit()
            return found

        return self._with_connection(whole)

    def _now(self, db: Connection) -> float:
        """Return the time by one clock, whichever machine asks."""
        from sqlalchemy import text

        if self.file is not None:
            return time.time()
        return float(db.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def now(self) -> float:
        return self._with_connection(self._now)

    def schema(self) -> int | None:
        """Return the number of the schema of the tables that are there, None if there are none; nothing is made."""
        if self.file is not None and not self.file.exists():
            return None
        return self._look(self._numbered)

    def _numbered(self, db: Connection) -> int | None:
        from sqlalchemy import inspect, select

        table = self.tables["schema"]
        if not inspect(db).has_table(table.name):
            return None
        return int(db.execute(select(table.c.schema)).scalar_one())

    def clock(self) -> float:
        """Return the database's time, and make nothing there."""
        return self._look(self._now)

    def _look(self, do: Callable[[Connection], T]) -> T:
        """Return what `do` reads at the first try, from tables that may be missing or of another schema."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._engine.connect() as db:
                return do(db)
        except SQLAlchemyError as error:
            raise self._problem(error) from error

    def _with_connection(self, do: Callable[[Connection], T]) -> T:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        until, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            try:
                self._make()
                with self._engine.connect() as db:
                    return do(db)
            except DBAPIError as error:
                if not self._passes(error) or time.monotonic() > until:
                    raise self._problem(error) from error
            except SQLAlchemyError as error:
                raise self._problem(error) from error
            time.sleep(pause)
            pause = min(1.0, 2 * pause)

    def _passes(self, error: Any) -> bool:
        """Return whether an error may be gone at the next try: a lock, or a server that restarts."""
        import sqlite3

        if self.file is not None:
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        state = getattr(error.orig, "sqlstate", None) or ""
        lost = not state or state.startswith(("08", "57", "40", "53"))  # connection, shutdown, deadlock, too many
        return error.connection_invalidated or (lost and type(error).__name__ in ("OperationalError", "InterfaceError"))

    def _make(self) -> None:
        """Make the tables, or upgrade those of an earlier adaptree; raise StoreError if they are of a newer one.

        Of several processes that start at once one does so, under the database's lock.
        """
        if self._made:
            return
        from sqlalchemy import text

        from adaptree.serve import migrations

        with self._making:
            if self.file is not None:
                try:
                    self.file.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise cannot_write(self.folder, error) from error
            with self._engine.connect() as db:
                db.execute(text("BEGIN IMMEDIATE" if self.file else f"SELECT pg_advisory_xact_lock({LOCK})"))
                if (found := self._numbered(db)) != SCHEMA:
                    migrations.upgrade(db, found, self.shown)
                db.commit()
            self._made = True

    @property
    def shown(self) -> str:
        """Where the jobs are, without a password."""
        if self.file is not None:
            return f"'{self.file}'"
        return server_url(self._asked).set(drivername="postgresql").render_as_string()

    def _problem(self, error: Exception) -> AdaptreeError:
        why = " ".join(str(getattr(error, "orig", error)).split())[:200]
        hint = "Is the disk full, or the file damaged?" if self.file is not None else "Start it, or correct --index."
        return StoreError(f"the jobs in {self.shown} cannot be used: {why}.", hint=hint)
