"""The queue of training jobs: what clients put into it, see of it and take back; `claims.py` has what workers do."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adaptree.reports.json_text import json_text
from adaptree.serve.jobs.claims import ClaimedJobs
from adaptree.serve.jobs.job import (
    BEST,
    CANCELLED,
    DONE,
    FAILED,
    NOTHING,
    QUEUED,
    RUNNING,
    Job,
    JobConflict,
    JobEvent,
    JobNotFound,
    OverQuota,
    job_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

PAGE = 100
# Inside a class that has a method `list`, that word is the method.
JobList = list[Job]
Events = list[JobEvent]
Finished = list[tuple[str, float]]


class Jobs(ClaimedJobs):
    """The jobs of a store, as clients and workers use them."""

    def add(
        self,
        tenant: str,
        file: str,
        settings: Mapping[str, Any],
        keep_data: bool = False,
        *,
        more_files: Mapping[str, str] | None = None,
        base: str = "",
        rows: int = 0,
        most_queued: int = 0,
        most_running: int = 0,
        most_seconds: int = 0,
        most_rows: int = 0,
    ) -> Job:
        """Queue a job on an uploaded file; raise OverQuota if the tenant has too many. 0 is any number.

        `settings` are those of `adaptree train`, with the task's whole name; `more_files` are further uploads, by what
        they are (MORE_FILES); `rows` are those of all files.
        `most_running` jobs of the tenant run at once, each for `most_seconds`; `most_rows` are those of a day.
        """
        from sqlalchemy import func, select

        data = self.files.get(file, tenant)
        others = {part: self.files.get(other, tenant) for part, other in (more_files or {}).items()}
        size = sum(each.bytes for each in (data, *others.values()))
        more = json_text({part: other.id for part, other in others.items()}) if others else ""
        id, table = secrets.token_hex(8), self._table

        def insert(db: Connection, now: float) -> None:
            if db.execute(select(table.c.id).where(table.c.id == id)).first():
                return  # it was done, but the answer did not arrive
            mine = table.c.store == self.database.store, table.c.tenant == tenant
            waiting = db.execute(select(func.count()).where(*mine, table.c.state == QUEUED)).scalar_one()
            if most_queued and waiting >= most_queued:
                raise OverQuota(f"{waiting:,} jobs are queued, which is the most.", hint="Wait until some are done.")
            if most_rows:
                today = select(func.coalesce(func.sum(table.c.rows), 0)).where(*mine, table.c.created > now - 86_400)
                if (used := int(db.execute(today).scalar_one())) + rows > most_rows:
                    raise OverQuota(
                        f"these {rows:,} rows and the {used:,} of the last day are more than {most_rows:,}.",
                        hint="Send fewer, or wait until tomorrow.",
                    )
            db.execute(
                table.insert().values(
                    id=id, store=self.database.store, tenant=tenant, name=settings["name"], state=QUEUED, base=base,
                    settings=json_text(dict(settings)), file=data.id, file_name=data.name, more_files=more,
                    keep_data=int(keep_data), rows=rows, bytes=size, most_running=most_running,
                    most_seconds=most_seconds, created=now,
                )
            )  # fmt: skip
            self._tell(db, id, now, "state", {"state": QUEUED})
            for each in (data, *others.values()):
                self.files.hold(db, each.id)

        self.database.write(insert, alone=True)
        return self.get(id)

    def get(self, id: str, tenant: str | None = None) -> Job:
        """Return a job; raise JobNotFound if there is none, or `tenant` is another's."""
        from sqlalchemy import select

        table = self._table
        mine = [table.c.store == self.database.store, table.c.id == id]
        if tenant:
            mine.append(table.c.tenant == tenant)
        row = self.database.read(lambda db: db.execute(select(table).where(*mine)).first(), None)
        if row is None:
            raise JobNotFound(f"no job '{id:.64}'.", hint="GET /v1/jobs lists those that there are.")
        return self._placed([job_of(row)])[0]

    def list(self, *, tenant: str = "", state: str = "", limit: int = PAGE, after: int = 0, name: str = "") -> JobList:
        """Return jobs, the newest first: of a tenant, in a state, of a task; `after` is the last number seen."""
        from sqlalchemy import select

        table = self._table
        given = {"tenant": tenant, "state": state, "name": name}
        wanted = [table.c[key] == value for key, value in given.items() if value]
        if after:
            wanted.append(table.c.number < after)
        mine = table.c.store == self.database.store
        query = select(table).where(mine, *wanted).order_by(table.c.number.desc()).limit(limit)
        return self._placed([job_of(row) for row in self.database.rows(query)])

    def events(self, id: str, after: int = 0, limit: int = 1000) -> Events:
        """Return the events of a job that come after a number."""
        from sqlalchemy import select

        table = self._events
        query = select(table).where(table.c.job == id, table.c.number > after).order_by(table.c.number).limit(limit)
        rows = self.database.rows(query)
        return [JobEvent(row.number, row.event, json.loads(row.data), row.time) for row in rows]

    def cancel(self, id: str, keep: str = NOTHING) -> Job:
        """End a job: at once if it waits; one that runs ends with its next step, and with BEST keeps its best epoch."""

        def change(db: Connection, now: float) -> Job | None:
            job = self._locked(db, id)
            if job.ended:
                raise JobConflict(f"the job is {job.state}.", hint="There is nothing to cancel.")
            if job.state == QUEUED and not (keep == BEST and job.attempts):
                return self._end(db, job, now, CANCELLED)
            self._set(db, id, cancel=keep)
            return None

        self._told(self.database.write(change))
        return self.get(id)

    def retry(self, id: str) -> Job:
        """Queue a job again that failed or was cancelled; raise JobConflict if its data is gone."""

        def change(db: Connection, now: float) -> None:
            job = self._locked(db, id)
            if job.state not in (FAILED, CANCELLED):
                raise JobConflict(f"the job is {job.state}.", hint="Only one that failed or was cancelled.")
            if not all(self.files.is_here(db, upload) for upload in job.uploads):
                raise JobConflict("the job's data was deleted.", hint="Send it again: POST /v1/jobs")
            self._set(db, id, state=QUEUED, error="", cancel="", finished=None, deaths=0, progress="", token="")
            self._tell(db, id, now, "state", {"state": QUEUED})
            for upload in job.uploads:
                self.files.hold(db, upload)

        self.database.write(change)
        return self.get(id)

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        from sqlalchemy import func, select

        table = self._table
        query = select(table.c.state, func.count()).where(table.c.store == self.database.store).group_by(table.c.state)
        return {row[0]: row[1] for row in self.database.rows(query)}

    def waiting(self) -> bool:
        """Return whether a job waits for a worker, or its worker does not report any more."""
        from sqlalchemy import select

        table = self._table
        waits = (table.c.state == QUEUED) | ((table.c.state == RUNNING) & (table.c.lease < time.time()))
        return bool(self.database.rows(select(table.c.id).where(table.c.store == self.database.store, waits).limit(1)))

    def done_since(self, when: float) -> Finished:
        """Return the names of tasks whose jobs were done after a time, and when."""
        from sqlalchemy import select

        table = self._table
        query = select(table.c.name, table.c.finished).where(
            table.c.store == self.database.store, table.c.state == DONE, table.c.finished > when
        )
        return [(name, when) for name, when in self.database.rows(query)]

    def _placed(self, jobs: JobList) -> JobList:
        """Return jobs with their places in the queue, if tenants take turns from here on."""
        from sqlalchemy import select

        if not any(job.state == QUEUED for job in jobs):
            return jobs
        table = self._table
        queued = table.c.store == self.database.store, table.c.state == QUEUED
        waiting: dict[str, list[int]] = {}
        for tenant, number in self.database.rows(select(table.c.tenant, table.c.number).where(*queued)):
            waiting.setdefault(tenant, []).append(number)
        for numbers in waiting.values():
            numbers.sort()
        return [replace(job, position=_place(job, waiting)) if job.state == QUEUED else job for job in jobs]


def _place(job: Job, waiting: Mapping[str, Sequence[int]]) -> int:
    """Return a job's place among the numbers of those that wait, by tenant."""
    own = sum(number < job.number for number in waiting.get(job.tenant, ()))
    others = (numbers for tenant, numbers in waiting.items() if tenant != job.tenant)
    return (
        1 + own + sum(min(len(numbers), own) + (len(numbers) > own and numbers[own] < job.number) for numbers in others)
    )
