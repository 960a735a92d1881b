"""Errors as a client sees them: a status, and {"error": {"code", "message", "hint"}}; never a traceback or a path.

::

    400 bad_request          not HTTP
    401 no_key, wrong_key    403 not_allowed, wrong_host
    404 task_not_found, job_not_found, file_not_found, no_such_route   405 method_not_allowed      408 too_slow
    409 wrong_base, in_use, wrong_state     413 too_large  415 wrong_content_type
    422 bad_json, bad_input, bad_bundle, bad_data (with the numbers of its rows)
    429 queue_full, too_busy, rate_limited, quota_exceeded, with Retry-After          431 headers_too_large
    500 internal_error, task_corrupt       503 shutting_down, no_room, store_error, replica_lost, with Retry-After
    504 deadline_exceeded
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from adaptree import errors
from adaptree.reports.json_text import json_text

_PRIVATE = {
    "task_corrupt": "the task's files are damaged.",
    "store_error": "the store cannot be read or written just now.",
    "no_room": "there is no room in memory for the task just now.",
}
"""What is said instead of an error that would show a path or another's task."""
_AGAIN = {429, 503}


@cache
def _table() -> list[tuple[type[errors.AdaptreeError], int, str]]:
    """Return the status and code of each class of error; the first class that an error has decides."""
    from adaptree.serve.batcher import QueueFull
    from adaptree.serve.engine import Closed, DeadlineExceeded, ReplicaLost
    from adaptree.serve.jobs.job import FileNotHere, JobConflict, JobNotFound, OverQuota
    from adaptree.serve.shelf import NoRoom

    return [
        (QueueFull, 429, "queue_full"),
        (DeadlineExceeded, 504, "deadline_exceeded"),
        (Closed, 503, "shutting_down"),
        (NoRoom, 503, "no_room"),
        (ReplicaLost, 503, "replica_lost"),
        (JobNotFound, 404, "job_not_found"),
        (FileNotHere, 404, "file_not_found"),
        (JobConflict, 409, "wrong_state"),
        (OverQuota, 429, "quota_exceeded"),
        (errors.WrongBase, 409, "wrong_base"),
        (errors.TaskNotFound, 404, "task_not_found"),
        (errors.BadName, 404, "task_not_found"),
        (errors.BundleError, 422, "bad_bundle"),
        (errors.TaskCorrupt, 500, "task_corrupt"),
        (errors.StoreError, 503, "store_error"),
        (errors.UsageError, 422, "bad_input"),
        (errors.DataError, 422, "bad_input"),
    ]


class Problem(Exception):
    """An error with its status, as it is sent."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.headers, self.more = dict(headers or {}), dict(more or {})
        if status in _AGAIN:
            self.headers.setdefault("Retry-After", "1")

    def to_dict(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint, **self.more}}

    def to_json(self) -> bytes:
        return json_text(self.to_dict()).encode()

    @property
    def closes(self) -> bool:
        """Whether the connection has to end, as the rest of the body is not read."""
        return self.status in (400, 408, 413, 431)


def problem_of(error: BaseException) -> Problem:
    """Return an error of ours, or of anybody, as a client may see it."""
    if isinstance(error, Problem):
        return error
    for kind, status, code in _table():
        if isinstance(error, kind):
            if code in _PRIVATE:
                return Problem(status, code, _PRIVATE[code], hint="Try again." if status == 503 else "Tell its owner.")
            again = {"Retry-After": str(math.ceil(after))} if (after := getattr(error, "retry_after", 0)) else None
            hint = "GET /v1/tasks lists those that there are." if code == "task_not_found" else error.hint
            return Problem(status, code, error.what, hint=hint, headers=again)
    return Problem(500, "internal_error", "something went wrong.", hint="Tell the owner the X-Request-Id.")


def not_found(asked: str, hint: str) -> Problem:
    """Return the error for a task that there is not, or that is not the caller's: the same for both."""
    return Problem(
        404, "task_not_found", f"no task '{asked:.200}'.", hint=hint or "GET /v1/tasks lists those that there are."
    )


def too_large(what: str, hint: str) -> Problem:
    return Problem(413, "too_large", what, hint=hint)
