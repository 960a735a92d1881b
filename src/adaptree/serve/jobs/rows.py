"""The rows of jobs in their database. A row is locked while it changes; whatever happens to a job is an event of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from adaptree.reports.json_text import json_text
from adaptree.serve.jobs.database import Database
from adaptree.serve.jobs.files import Files
from adaptree.serve.jobs.job import Job, JobNotFound, job_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from adaptree.tasks.store import Store


class JobRows:
    """The jobs of a store. `url` is postgresql://…; without one it is the store's index's, else a file in the store.

    `on_end` is called with each job that this object brings to an end.
    """

    def __init__(self, store: Store, url: str | None = None, *, on_end: Callable[[Job], None] | None = None) -> None:
        self.store = store
        self.database = Database(store, url)
        self.on_end = on_end

    @cached_property
    def files(self) -> Files:
        return Files(self.store, self.database)

    @cached_property
    def _table(self) -> Any:
        return self.database.tables["jobs"]

    @cached_property
    def _events(self) -> Any:
        return self.database.tables["events"]

    def _locked(self, db: Connection, id: str) -> Job:
        """Return a job, which nobody else changes until the transaction ends."""
        from sqlalchemy import select

        table = self._table
        row = db.execute(
            select(table).where(table.c.store == self.database.store, table.c.id == id).with_for_update()
        ).first()
        if row is None:
            raise JobNotFound(f"no job '{id:.64}'.", hint="GET /v1/jobs lists those that there are.")
        return job_of(row)

    def _set(self, db: Connection, id: str, **values: Any) -> None:
        db.execute(self._table.update().where(self._table.c.id == id).values(**values))

    def _tell(self, db: Connection, id: str, now: float, event: str, data: Mapping[str, Any]) -> None:
        """Add an event; the job's row is locked, so that numbers become visible in their order."""
        table = self._table
        db.execute(table.update().where(table.c.id == id).values(events=table.c.events + 1))
        number = self._locked(db, id).events
        values = {"job": id, "number": number, "event": event, "data": json_text(dict(data)), "time": now}
        db.execute(self._events.insert().values(**values))

    def _end(
        self,
        db: Connection,
        job: Job,
        now: float,
        state: str,
        *,
        task: str = "",
        metrics: Mapping[str, Any] | None = None,
        error: Mapping[str, str] | None = None,
    ) -> Job:
        self._set(
            db, job.id, state=state, finished=now, task=task, metrics=json_text(dict(metrics)) if metrics else "",
            error=json_text(dict(error)) if error else "",
        )  # fmt: skip
        said = {"state": state, **({"task": task} if task else {}), **({"error": dict(error)} if error else {})}
        self._tell(db, job.id, now, "state", said)
        self.files.let_go(db, job, now, state)
        return self._locked(db, job.id)

    def _told(self, job: Job | None) -> None:
        """Delete what an ended job does not need any more, and tell whoever wants to know."""
        if job is None:
            return
        self.files.clear()
        if self.on_end is not None:
            self.on_end(job)
