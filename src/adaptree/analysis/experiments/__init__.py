"""The papers' tables on real data, one file each: train the cells that are missing, then write a table and a figure.

`adaptree experiment NAME` runs one. A cell that is done is kept, so that the same command goes on where it stopped.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from adaptree.analysis.experiments.setup import Setup, made_by
from adaptree.errors import UsageError, near

AS_PUBLISHED = ("glue", "text17")
"""Experiments that can be run with the paper's own recipe."""
SPREAD = (
    "dropout", "forgetting", "glue", "initscale", "lowdata", "masks", "noise", "rates", "squad", "text17", "tradeoff",
)  # fmt: skip
"""Experiments whose cells stand alone, so that other processes and machines can run them."""
NAMES = (
    "causal", "comparison", "dropout", "e2e", "fast", "forgetting", "fusion", "glue", "improve", "initscale", "kinds",
    "languages", "layers", "lowdata", "masks", "noise", "rates", "squad", "text17", "tradeoff", "transfer", "translate",
)  # fmt: skip


def about(name: str) -> str:
    """Return the first line of an experiment's description."""
    return str(_module(name).__doc__).partition("\n")[0]


def check_name(name: str) -> None:
    """Raise UsageError, with near names, if there is no such experiment."""
    if name not in NAMES:
        raise UsageError(f"no experiment '{name}'.", hint=near(name, NAMES) or f"There are: {', '.join(NAMES)}.")


def run(name: str, data: Path, out: Path, **more: Any) -> str:
    """Run what is missing of an experiment; return its page. `more` are the further fields of `Setup`."""
    check_name(name)
    if more.get("paper") and name not in AS_PUBLISHED:
        raise UsageError(f"the experiment '{name}' has one recipe.", hint="Leave out --paper.")
    if name not in SPREAD and (more.get("cluster") or more.get("jobs", 1) > 1):
        raise UsageError(
            f"the cells of '{name}' build on each other in one folder: they are run one by one.",
            hint="Leave out --jobs and --cluster.",
        )
    if more.get("redraw") and (command := made_by(out)):
        more["command"] = command
    return str(_module(name).run(Setup(data, out, **more)))


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
