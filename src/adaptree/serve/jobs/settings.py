"""What a client may set for a job: the options of `adaptree train`, but none that names something of the server's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import UsageError
from adaptree.serve.jobs.job import MORE_FILES
from adaptree.training.config import options_of_file, with_size
from adaptree.training.run import Run
from adaptree.training.settings import check_number

if TYPE_CHECKING:
    from adaptree.models.base import Base

REFUSED = {
    "base": "a job is trained on the base that is served",
    "on": "a job does not build on other tasks",
    **{part: f"a job names that file beside its settings, as {part}" for part in MORE_FILES},
}
"""Options that name files, folders, code or other tasks, and why a client cannot give them."""
MOST = {"epochs": 1000, "max_steps": 1_000_000, "batch_size": 512, "search": 50, "accumulate": 512}
"""The most that a client may ask for: a job has the worker to itself."""
WHERE = "settings"


@dataclass(frozen=True)
class BaseInfo:
    """What a check needs to know of the base, as plain values for another process."""

    location: str
    fingerprint: str
    limit: int
    pooling: str
    parameters: int

    @classmethod
    def of(cls, base: Base) -> BaseInfo:
        backbone = base.hooked.backbone
        embedded = sum(p.numel() for name, p in backbone.named_parameters() if "embeddings" in name)
        whole = sum(p.numel() for p in backbone.parameters())
        return cls(base.location, base.fingerprint, base.limit, base.pooling, whole - embedded)


def without_folders(text: str, place: str) -> str:
    """Return a message without the folder of the server that a file is in: of PLACE/files/ID/NAME the name stays."""
    return re.sub(rf"{re.escape(place)}(?:[^'/\\]+[/\\])*", "", text)


def check_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings with names as in Python; raise UsageError for what is unknown, wrong or not theirs."""
    for name in given:
        if (why := REFUSED.get(str(name).strip().replace("-", "_"))) is not None:
            raise UsageError(f"'{name}' cannot be set here: {why}.", hint="Leave it out.")
    options = options_of_file({name: value for name, value in given.items() if value is not None}, WHERE)
    for name, most in MOST.items():
        check_number(name, options.get(name), whole=True, least=1)
        if options.get(name, 0) > most:
            raise UsageError(f"{name} can be at most {most:,} here, not {options[name]:,}.")
    if "(" in str(options.get("method", "")) and str(options["method"]).strip().startswith("fuse"):
        raise UsageError("'method' cannot be a composition here: a job does not build on other tasks.", hint="houlsby")
    run_of(Path("data.csv"), {**options, "name": "task"})
    return options


def run_of(file: Path, options: Mapping[str, Any], **more: Any) -> Run:
    """Return the run of a job; `more` are options that the server chooses."""
    own = dict(options)
    size, layers = own.pop("size", None), own.pop("layers", None)
    return Run.of(str(file), **with_size(own, size, layers), **more)
