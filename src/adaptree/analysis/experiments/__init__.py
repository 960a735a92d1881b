"""The papers' tables on real data, one file each: train the cells that are missing, then write a table and a figure.

`adaptree experiment NAME` runs one. A cell that is done is kept, so that the same command goes on where it stopped.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from adaptree.analysis.experiments.setup import Setup, made_by
from adaptree.errors import UsageError, near

ONE_SEED = ("languages", "transfer")
LISTED = ("dropout", "forgetting", "glue", "initscale", "lowdata", "masks", "rates", "squad", "text17", "tradeoff")
"""Experiments whose cells can be listed and budgeted."""
AS_PUBLISHED = ("glue", "text17")
"""Experiments that can be run with the paper's own recipe."""
NAMES = (
    "comparison", "dropout", "fast", "forgetting", "fusion", "glue", "initscale", "kinds", "languages", "layers",
    "lowdata", "masks", "noise", "rates", "squad", "text17", "tradeoff", "transfer",
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
    if name in ONE_SEED and more.get("seeds") not in (None, 1):
        raise UsageError(f"the experiment '{name}' has one seed.", hint="Leave out --seeds.")
    if name not in LISTED and (more.get("dry_run") or more.get("budget") is not None):
        raise UsageError(f"the experiment '{name}' has no list of its cells.", hint="Leave out --dry-run and --budget.")
    if name not in LISTED and more.get("redraw"):
        raise UsageError(f"the experiment '{name}' draws its page as it runs.", hint="Leave out --redraw.")
    if more.get("paper") and name not in AS_PUBLISHED:
        raise UsageError(f"the experiment '{name}' has one recipe.", hint="Leave out --paper.")
    if more.get("redraw") and (command := made_by(out)):
        more["command"] = command
    return str(_module(name).run(Setup(data, out, **more)))


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
