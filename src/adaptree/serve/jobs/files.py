"""The data files of jobs, which are kept with the store, and deleted when nobody needs them any more.

    <store>/jobs/files/ID/NAME       an upload; behind a URL, the object jobs/files/ID
    <store>/jobs/incoming/ID         one that is on its way; locked by the process that receives it
    <store>/jobs/work/ID/NAME        a copy for a worker, of a store behind a URL
    <store>/jobs/runs/JOB/           a job's checkpoint; behind a URL, the object jobs/runs/JOB has a copy

The database's row comes before the file and goes after it, so that there is no file that nobody knows. What a process
left on its way when it was killed is not locked any more, and deleted by the next server or worker that starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from adaptree.data.read import suffix
from adaptree.errors import DataError
from adaptree.models.cache_files import alone
from adaptree.serve.jobs.job import CANCELLED, DONE, FAILED, QUEUED, RUNNING, FileNotHere, Job, JobConflict, OverQuota
from adaptree.tasks.files import cannot_write, sync
from adaptree.tasks.runs import CHECKPOINT

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from adaptree.serve.jobs.database import Database
    from adaptree.tasks.objects import Objects
    from adaptree.tasks.store import Store

DAY = 86_400.0
STALE = 3600.0
"""Seconds after which a leftover goes that carries no lock."""
LONGEST_NAME = 150
"""Bytes of a file's name."""


@dataclass(frozen=True)
class DataFile:
    """An uploaded file."""

    id: str
    tenant: str
    name: str
    bytes: int
    sha256: str
    created: float
    expires: float | None
    """When it is deleted; None while a job needs it, or if it is kept."""


def check_file_name(name: str) -> str:
    """Return a file's name as it came; raise DataError if it is a path, not printable, too long, or of no known format.

    Nothing is taken away from a name to make it fit: what a client sees is what it sent.
    """
    shown = "".join(c if c.isprintable() else "�" for c in name[:60])
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = LONGEST_NAME + 1
    odd = any(unicodedata.category(c)[0] == "C" for c in name)
    if not name or odd or size > LONGEST_NAME or name.startswith(".") or {"/", "\\"} & set(name):
        raise DataError(
            f"'{shown}' cannot be a file's name.",
            hint=f"A name has no slash, no control characters, and at most {LONGEST_NAME} bytes: reviews.csv",
        )
    suffix(Path(name))
    return name


class Incoming:
    """A file that is being received: `write` its pieces, then `Files.keep` it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file = path, file
        self.bytes, self._digest = 0, hashlib.sha256()

    def write(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            raise cannot_write(self.path.parent, error) from error
        self._digest.update(piece)
        self.bytes += len(piece)

    def close(self) -> str:
        """Flush everything to the disk; return the digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._digest.hexdigest()


class Files:
    """The uploads of a store, each of a tenant."""

    def __init__(self, store: Store, database: Database) -> None:
        self.database = database
        self.folder = database.folder
        self._objects: Objects | None = getattr(store, "objects", None)

    @cached_property
    def _table(self) -> Any:
        return self.database.tables["files"]

    # coming in

    @contextmanager
    def receive(self) -> Iterator[Incoming]:
        """Yield a place for a file on its way, which is gone at the end unless it was kept."""
        path = self.folder / "incoming" / secrets.token_hex(8)
        with ExitStack() as opened:
            opened.callback(path.unlink, missing_ok=True)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                opened.enter_context(alone(path))
                file = opened.enter_context(path.open("r+b"))
            except OSError as error:
                raise cannot_write(self.folder, error) from error
            yield Incoming(path, file)

    def keep(self, incoming: Incoming, tenant: str, name: str, *, most: int = 0) -> DataFile:
        """Keep a file that has come; raise OverQuota if the tenant would have more than `most` bytes."""
        from sqlalchemy import func, select

        digest, table, id = incoming.close(), self._table, incoming.path.name

        def insert(db: Connection, now: float) -> DataFile:
            mine = table.c.store == self.database.store, table.c.tenant == tenant
            query = select(func.coalesce(func.sum(table.c.bytes), 0)).where(*mine, table.c.id != id)
            used = int(db.execute(query).scalar_one())
            if most and used + incoming.bytes > most:
                raise OverQuota(
                    f"these {incoming.bytes:,} bytes and the {used:,} that are here are more than {most:,}.",
                    hint="Delete files that are not needed, or wait until jobs are done.",
                )
            kept = DataFile(id, tenant, name, incoming.bytes, digest, now, now + DAY)
            db.execute(table.delete().where(table.c.id == id))  # where the answer to the first try did not arrive
            db.execute(table.insert().values(store=self.database.store, **kept.__dict__))
            return kept

        kept = self.database.write(insert, alone=True)
        try:
            if self._objects is not None:
                self._objects.put_file(self._key(id), incoming.path)
            else:
                place = self._place(id)
                place.mkdir(parents=True)
                os.rename(incoming.path, place / name)
                sync(place)
                sync(place.parent)
        except BaseException as error:
            self._delete(id)
            if isinstance(error, OSError):
                raise cannot_write(self.folder, error) from error
            raise
        return kept

    # here

    def get(self, id: str, tenant: str | None = None) -> DataFile:
        """Return what is known of an upload; raise FileNotHere if there is none, or it is another tenant's."""
        from sqlalchemy import select

        table = self._table
        mine = [table.c.store == self.database.store, table.c.id == id]
        if tenant:
            mine.append(table.c.tenant == tenant)
        row = self.database.read(lambda db: db.execute(select(table).where(*mine)).first(), None)
        if row is None or (row.expires is not None and row.expires <= time.time()):
            raise _not_here(id)
        return _file_of(row)

    @contextmanager
    def open(self, file: DataFile) -> Iterator[Path]:
        """Yield the path of an upload on this machine, under its own name."""
        place = self._place(file.id) / file.name
        if self._objects is None:
            if not place.is_file():
                raise _not_here(file.id)
            yield place
            return
        own = self.folder / "work" / secrets.token_hex(8)
        with ExitStack() as opened:
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            try:
                own.mkdir(parents=True)
                opened.enter_context(alone(own / ".lock"))
            except OSError as error:
                raise cannot_write(self.folder, error) from error
            if not self._objects.get_file(self._key(file.id), own / file.name):
                raise _not_here(file.id)
            yield own / file.name

    def delete(self, id: str, tenant: str | None = None) -> None:
        """Delete an upload; raise FileNotHere if there is none, and JobConflict if a job needs it."""
        file, table = self.get(id, tenant), self._table

        def expire(db: Connection, now: float) -> None:
            if self._is_needed(db, file.id):
                raise JobConflict("a job needs this file.", hint="Cancel the job first.")
            db.execute(table.update().where(table.c.id == file.id).values(expires=0.0))

        self.database.write(expire, alone=True)
        self._delete(file.id)

    def discard(self, *ids: str) -> None:
        """Delete uploads that nobody else knows of."""
        for id in ids:
            self._delete(id)

    def checkpoints(self, job: str) -> Path:
        """Return the folder of a job's checkpoint."""
        return self.folder / "runs" / job

    def send_checkpoint(self, job: str, seen: int) -> int:
        """Copy a job's checkpoint to where other machines find it, if there is one and it is newer than `seen`.

        Return the time of the checkpoint that is there. A store in a folder has it already.
        """
        if self._objects is None:
            return seen
        file = self.checkpoints(job) / CHECKPOINT
        try:
            now = file.stat().st_mtime_ns
            if now > seen:
                self._objects.put_file(f"jobs/runs/{job}", file)
        except FileNotFoundError:
            return seen
        return now

    def fetch_checkpoint(self, job: str) -> None:
        """Copy a job's checkpoint from another machine's worker, if there is one; it is checked when it is read."""
        if self._objects is None:
            return
        folder = self.checkpoints(job)
        folder.mkdir(parents=True, exist_ok=True)
        self._objects.get_file(f"jobs/runs/{job}", folder / CHECKPOINT)

    def drop_checkpoint(self, job: str) -> None:
        """Delete a job's checkpoint."""
        shutil.rmtree(self.checkpoints(job), ignore_errors=True)
        if self._objects is not None:
            self._objects.delete(f"jobs/runs/{job}")

    # what the queue asks for, in its transactions

    def hold(self, db: Connection, id: str) -> None:
        """Let a job need an upload: it does not expire."""
        table = self._table
        here = (table.c.expires.is_(None)) | (table.c.expires > time.time())
        if not db.execute(table.update().where(table.c.id == id, here).values(expires=None)).rowcount:
            raise _not_here(id)

    def is_here(self, db: Connection, id: str) -> bool:
        from sqlalchemy import select

        row = db.execute(select(self._table.c.expires).where(self._table.c.id == id)).first()
        return row is not None and (row.expires is None or row.expires > time.time())

    def _is_needed(self, db: Connection, id: str, *, or_kept: bool = False) -> bool:
        """Return whether a job that has not ended needs an upload, or with `or_kept` one that has asked to keep it."""
        from sqlalchemy import select

        jobs = self.database.tables["jobs"]
        needs = jobs.c.state.in_((QUEUED, RUNNING))
        who = jobs.c.store == self.database.store, needs | (jobs.c.keep_data == 1) if or_kept else needs
        if db.execute(select(jobs.c.id).where(*who, jobs.c.file == id).limit(1)).first() is not None:
            return True
        more = select(jobs.c.more_files).where(*who, jobs.c.more_files != "")
        return any(id in json.loads(row.more_files).values() for row in db.execute(more))

    def let_go(self, db: Connection, job: Job, now: float, state: str) -> None:
        """Let uploads expire whose job has ended: at once, or a day after it failed, as it can be tried again."""
        until = now + DAY if state == FAILED else 0.0
        for id in job.uploads:
            if not job.keep_data and not self._is_needed(db, id, or_kept=True):
                db.execute(self._table.update().where(self._table.c.id == id).values(expires=until))

    # going

    def clear(self) -> None:
        """Delete what has expired."""
        from sqlalchemy import select

        table = self._table
        query = select(table.c.id).where(table.c.store == self.database.store, table.c.expires <= time.time())
        for (id,) in self.database.rows(query):
            self._delete(id)

    def sweep(self) -> None:
        """Delete what has expired, and what processes that were killed have left behind."""
        from sqlalchemy import select

        self.clear()
        for path in _inside(self.folder / "incoming"):
            _remove_unlocked(path, path)
        for path in _inside(self.folder / "work"):
            _remove_unlocked(path, path / ".lock")
        table, jobs = self._table, self.database.tables["jobs"]
        known = {id for (id,) in self.database.rows(select(table.c.id).where(table.c.store == self.database.store))}
        if self._objects is None:
            for path in _inside(self.folder / "files"):
                if path.name not in known and _age(path) > STALE:
                    shutil.rmtree(path, ignore_errors=True)
        query = select(jobs.c.id, jobs.c.state, jobs.c.file).where(jobs.c.store == self.database.store)
        states = {id: (state, file) for id, state, file in self.database.rows(query)}
        for path in _inside(self.folder / "runs"):
            state, file = states.get(path.name, (DONE, ""))
            if state in (DONE, CANCELLED) or (state == FAILED and file not in known):
                shutil.rmtree(path, ignore_errors=True)

    def _delete(self, id: str) -> None:
        """Delete an upload: first its bytes, then its row."""
        if self._objects is not None:
            self._objects.delete(self._key(id))
        else:
            place, gone = self._place(id), self.folder / "incoming" / f"{id}-gone"
            with suppress(FileNotFoundError, OSError):
                gone.parent.mkdir(parents=True, exist_ok=True)
                os.rename(place, gone)  # nobody sees half of it
                shutil.rmtree(gone, ignore_errors=True)
            shutil.rmtree(place, ignore_errors=True)
        table = self._table
        self.database.write(lambda db, now: db.execute(table.delete().where(table.c.id == id)) and None)

    def _place(self, id: str) -> Path:
        return self.folder / "files" / id

    def _key(self, id: str) -> str:
        return f"jobs/files/{id}"


def _file_of(row: Any) -> DataFile:
    return DataFile(row.id, row.tenant, row.name, row.bytes, row.sha256, row.created, row.expires)


def _not_here(id: str) -> FileNotHere:
    return FileNotHere(f"no file '{id:.64}'.", hint="Send it first: POST /v1/files?name=reviews.csv")


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove_unlocked(path: Path, lock: Path) -> None:
    """Remove a leftover, unless the process that made it still holds its lock."""
    with suppress(OSError):
        if lock.is_file():
            with alone(lock):
                _remove(path)
        elif _age(path) > STALE or path.name.endswith("-gone"):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
