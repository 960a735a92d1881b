"""What workers do with jobs: claim them, report, publish, and bring them to an end.

A worker that claims a job gets a token and a lease, which its heartbeats renew. A job whose lease has run out is queued
again. Whatever a worker writes names its token, so that one that was taken for dead can write nothing any more.

A task is published once, however many workers were at it: a version's number is reserved here first, and the store
creates a version of that number once. Whoever comes second finds the version there, with the job's key in its record.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaptree.reports.json_text import json_text
from adaptree.serve.jobs.job import CANCELLED, ENDED, FAILED, NOTHING, QUEUED, RUNNING, Job, LeaseLost, job_of
from adaptree.serve.jobs.rows import JobRows

if TYPE_CHECKING:
    from sqlalchemy import Connection

MOST_DEATHS = 5
"""Workers that may die over a job, one after another, without it getting any further: it may be what kills them."""
KEPT = 30 * 86_400
"""Seconds for which the queue remembers jobs that have ended; one whose data is kept, for as long as it is."""


@dataclass(frozen=True)
class Claim:
    """A job that a worker has, and the token that proves it."""

    job: Job
    token: str


class ClaimedJobs(JobRows):
    """The jobs of a store, as workers see them."""

    def claim(self, worker: str, base: str = "", *, lease: float = 30.0) -> Claim | None:
        """Return the job whose turn it is, or None; `base` is the fingerprint of the only base that the worker has.

        Tenants take turns: the one with the fewest jobs running, of those the one whose last job began longest ago;
        of a tenant the oldest job, but no two of one task at once.
        """
        ended: list[Job] = []

        def take(db: Connection, now: float) -> Claim | None:
            ended[:] = self._take_back(db, now)
            found = self._next(db, base)
            if found is None:
                return None
            token = secrets.token_hex(16)
            begun = {"started": now if found.started is None else found.started, "begun": now}
            self._set(db, found.id, state=RUNNING, token=token, worker=worker, lease=now + lease,
                      attempts=found.attempts + 1, **begun)  # fmt: skip
            self._tell(db, found.id, now, "state", {"state": RUNNING, "attempt": found.attempts + 1})
            return Claim(self._locked(db, found.id), token)

        claim = self.database.write(take, alone=True)
        for job in ended:
            self._told(job)
        return claim

    def _next(self, db: Connection, base: str) -> Job | None:
        from sqlalchemy import func, select

        table = self._table
        mine = table.c.store == self.database.store
        fits = [mine, table.c.state == QUEUED, *([table.c.base.in_(["", base])] if base else [])]
        oldest = _by_tenant(db, select(table.c.tenant, func.min(table.c.number)).where(*fits), table)
        if not oldest:
            return None
        running = _by_tenant(db, select(table.c.tenant, func.count()).where(mine, table.c.state == RUNNING), table)
        known = select(table.c.tenant, func.max(table.c.begun)).where(mine, table.c.tenant.in_(list(oldest)))
        begun = _by_tenant(db, known, table)
        busy = select(table.c.name).where(mine, table.c.state == RUNNING)
        for tenant in sorted(oldest, key=lambda t: (running.get(t, 0), begun.get(t) or 0.0, oldest[t])):
            most = (table.c.most_running == 0) | (table.c.most_running > running.get(tenant, 0))
            query = select(table).where(*fits, table.c.tenant == tenant, most, table.c.name.not_in(busy))
            row = db.execute(query.order_by(table.c.number).limit(1).with_for_update(skip_locked=True)).first()
            if row is not None:
                return job_of(row)
        return None

    def _take_back(self, db: Connection, now: float, worker: str = "") -> list[Job]:
        """Queue jobs again whose worker does not report any more, or is called so; return those that end instead."""
        from sqlalchemy import select

        table, ended = self._table, []
        dead = table.c.worker.startswith(worker, autoescape=True) if worker else table.c.lease < now
        query = select(table).where(table.c.store == self.database.store, table.c.state == RUNNING, dead)
        for row in db.execute(query.with_for_update(skip_locked=True)).all():
            job = job_of(row)
            if job.cancel == NOTHING:
                ended.append(self._end(db, job, now, CANCELLED))
            elif job.deaths + 1 >= MOST_DEATHS:
                error = {
                    "code": "worker_died",
                    "message": f"{MOST_DEATHS} workers died over it, one after another.",
                    "hint": "It may need more memory than there is: try fast, or a smaller batch_size or max_length.",
                }
                ended.append(self._end(db, job, now, FAILED, error=error))
            else:
                self._set(db, job.id, state=QUEUED, deaths=job.deaths + 1, token="")
                self._tell(db, job.id, now, "state", {"state": QUEUED, "why": "its worker died"})
        return ended

    def take_back(self, worker: str = "") -> None:
        """Queue the jobs again whose lease has run out, or those of dead workers whose names begin so."""

        def take(db: Connection, now: float) -> list[Job]:
            return self._take_back(db, now, worker)

        for job in self.database.write(take, alone=True):
            self._told(job)

    def beat(self, claim: Claim, seconds: float, *, lease: float = 30.0) -> str:
        """Renew a lease, and note the seconds spent since the last time; return what was asked for by a cancel, or ''.

        Raise LeaseLost if the job is another worker's, or nobody's, by now.
        """

        def renew(db: Connection, now: float) -> str:
            job = self._own(db, claim)
            self._set(db, job.id, lease=now + lease, seconds=max(job.seconds, claim.job.seconds + seconds))
            return job.cancel

        return self.database.write(renew)

    def note(
        self, claim: Claim, event: str, data: Mapping[str, Any], progress: Mapping[str, Any] | None = None
    ) -> None:
        """Add an event; with `progress` the job has come further, and shows it."""

        def add(db: Connection, now: float) -> None:
            job = self._own(db, claim)
            if progress is not None:
                further = progress.get("share", 0.0) > job.progress.get("share", 0.0)
                self._set(db, job.id, progress=json_text(dict(progress)), deaths=0 if further else job.deaths)
            self._tell(db, claim.job.id, now, event, data)

        self.database.write(add)

    def reserve(self, claim: Claim, number: int, instead_of: int) -> int:
        """Reserve a version's number for the job's task, unless another one is reserved by now; return what is.

        From here on the job ends as done: a cancel that keeps nothing comes too late.
        """

        def change(db: Connection, now: float) -> int:
            job = self._own(db, claim)
            if job.cancel == NOTHING:
                raise LeaseLost("the job was cancelled.")
            if job.version != instead_of:
                return job.version
            self._set(db, job.id, version=number)
            return number

        return self.database.write(change)

    def finish(
        self,
        claim: Claim,
        state: str,
        *,
        seconds: float,
        task: str = "",
        metrics: Mapping[str, Any] | None = None,
        error: Mapping[str, str] | None = None,
    ) -> Job:
        """Bring a job to its end; raise LeaseLost if it is not this worker's."""
        last = claim.job

        def change(db: Connection, now: float) -> Job:
            job = self._locked(db, last.id)
            if job.token == claim.token and job.ended:
                return job  # it was done, but the answer did not arrive
            self._own(db, claim)
            self._set(db, job.id, seconds=last.seconds + seconds)
            job = self._locked(db, last.id)
            return self._end(db, job, now, state, task=task, metrics=metrics, error=error)

        job = self.database.write(change)
        self._told(job)
        return job

    def give_back(self, claim: Claim, seconds: float) -> None:
        """Queue a job again that this worker leaves; the next one goes on from its checkpoint."""

        def change(db: Connection, now: float) -> Job | None:
            job = self._own(db, claim)
            self._set(db, job.id, seconds=claim.job.seconds + seconds)
            if job.cancel == NOTHING:
                return self._end(db, self._locked(db, job.id), now, CANCELLED)
            self._set(db, job.id, state=QUEUED, token="")
            self._tell(db, job.id, now, "state", {"state": QUEUED, "why": "its worker was stopped"})
            return None

        self._told(self.database.write(change))

    def sweep(self) -> None:
        """Take back what dead workers have, and delete what nobody needs any more: old jobs, events, files."""
        from sqlalchemy import select

        if self.database.file is not None and not self.database.file.exists():
            return
        self.take_back()
        table, events = self._table, self._events

        files = self.database.tables["files"]

        def forget(db: Connection, now: float) -> None:
            here = (table.c.keep_data == 1) & table.c.file.in_(select(files.c.id))  # else nobody would know it any more
            old = select(table.c.id).where(
                table.c.store == self.database.store, table.c.state.in_(ENDED), table.c.finished < now - KEPT, ~here
            )
            ids = list(db.execute(old).scalars())
            if ids:
                db.execute(events.delete().where(events.c.job.in_(ids)))
                db.execute(table.delete().where(table.c.id.in_(ids)))

        self.database.write(forget)
        self.files.sweep()

    def _own(self, db: Connection, claim: Claim) -> Job:
        job = self._locked(db, claim.job.id)
        if job.token != claim.token or job.state != RUNNING:
            raise LeaseLost(f"the job '{job.id}' is not this worker's any more.")
        return job


def _by_tenant(db: Connection, query: Any, table: Any) -> dict[str, Any]:
    """Return what a query counts for each tenant."""
    return {row[0]: row[1] for row in db.execute(query.group_by(table.c.tenant))}
