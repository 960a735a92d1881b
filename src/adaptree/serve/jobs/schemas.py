"""What requests and answers of jobs look like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_SETTINGS: Any = {"name": "reviews", "method": "houlsby:64", "text": "review", "label": "stars"}
_JOB: Any = {
    "id": "8f14e45fceea167a",
    "tenant": "acme",
    "name": "acme/reviews",
    "state": "running",
    "settings": {**_SETTINGS, "name": "acme/reviews"},
    "file": "c4ca4238a0b92382",
    "file_name": "reviews.csv",
    "more_files": {"test": "9e107d9d372bb682"},
    "keep_data": False,
    "created": "2026-03-01T12:00:00.000+00:00",
    "started": "2026-03-01T12:00:01.000+00:00",
    "finished": None,
    "position": None,
    "progress": {"epoch": 3, "epochs": 20, "step": 41, "share": 0.13, "seconds_left": 35.2, "loss": 0.41},
    "attempts": 1,
    "cancel": None,
    "error": None,
    "task": None,
    "metrics": None,
    "bill": {"rows": 300, "seconds": 5.1, "bytes": 41_022},
}


Upload = Annotated[str, Field(min_length=1, max_length=64)]


class JobRequest(BaseModel):
    """A job to queue. As a form, `file` and the other files are the files themselves, and `settings` is JSON."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"file": "c4ca4238a0b92382", "settings": _SETTINGS}]},
    )
    file: Upload = Field(description="The id of a file that was sent before.")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of `adaptree train`, such as name, method, text, label, epochs, seed or fast; none that "
        "names files, folders or other tasks.",
    )
    validation: Upload | None = Field(None, description="A file of rows to validate on; else a fifth is held out.")
    test: Upload | None = Field(None, description="A file of rows to test on, once, at the end.")
    descriptions: Upload | None = Field(None, description="A .txt file with a line for each label, name: description.")
    keep_data: bool = Field(False, description="Keep the files when the job has ended; else they are deleted.")


class FileInfo(BaseModel):
    """A data file that is here."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "c4ca4238a0b92382",
                    "name": "reviews.csv",
                    "bytes": 41_022,
                    "expires": "2026-03-02T12:00:00.000+00:00",
                }
            ]
        }
    )
    id: str
    name: str
    bytes: int
    expires: str | None


class FileRemoved(BaseModel):
    """The id of a file that is gone."""

    removed: str


class CheckAnswer(BaseModel):
    """What `adaptree check --format json` says, and what would be trained."""

    model_config = ConfigDict(extra="allow")
    rows: int
    kind: str
    problems: list[str]
    columns: list[str] = Field(description="The file's columns.")
    roles: dict[str, str | None] = Field(description="Which column is read as what.")
    preview: list[dict[str, str]] = Field(description="Its first rows.")
    settings: dict[str, Any] = Field(description="The settings with all that was left open.")
    why: dict[str, str] = Field(description="A sentence for each setting that was chosen.")
    regime: dict[str, str] = Field(description="The objective, and why.")
    parts: dict[str, int] = Field(description="Rows to train on, to validate on and, if there are some, to test on.")
    estimate_seconds: float
    command: str = Field(description="The command that would train the same.")


class Bill(BaseModel):
    """What a job cost."""

    rows: int
    seconds: float
    bytes: int


class JobInfo(BaseModel):
    """A job."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_JOB]})
    id: str
    tenant: str
    name: str
    state: str
    settings: dict[str, Any]
    created: str
    started: str | None
    finished: str | None
    position: int | None = Field(description="Its place in the queue.")
    progress: dict[str, Any] | None
    attempts: int
    error: dict[str, str] | None
    task: str | None = Field(description="The version that it became.")
    metrics: dict[str, Any] | None
    bill: Bill


class JobPage(BaseModel):
    """Some jobs; `next` is what to ask for `after`."""

    jobs: list[JobInfo]
    next: str | None
