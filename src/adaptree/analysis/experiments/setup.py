"""The setup of an experiment, and its page, which is written to OUT/table.md."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from adaptree.analysis.compare.files import writing
from adaptree.data.events import Listener, silent
from adaptree.errors import UsageError, near


@dataclass(frozen=True)
class Setup:
    """Where the datasets are, where the results go, and how much of an experiment to run."""

    data: Path
    out: Path
    tasks: Sequence[str] = ()
    """Only these; all if empty."""
    seeds: int | None = None
    """None: the experiment's own number."""
    base: str | Path = "minilm"
    threads: int | None = None
    jobs: int = 1
    """How many cells are run at a time, each in a process."""
    cluster: str | None = None
    """The Ray cluster that runs the cells: "ray", or its address."""
    budget: float | None = None
    """Minutes, from when this is made, after which no further cell is begun."""
    dry_run: bool = False
    """Only list the cells that would be run."""
    redraw: bool = False
    """Only write the page again from the cells that are there: nothing is trained, and no dataset is read."""
    paper: bool = False
    """The paper's own recipe, for a large base and a GPU, in the place of the experiment's."""
    command: str = ""
    on_event: Listener = silent
    began: float = field(default_factory=time.monotonic)

    def fits(self, seconds: float) -> bool:
        """Return whether something that takes so long from now on ends within the budget."""
        return self.budget is None or time.monotonic() + seconds <= self.began + 60 * self.budget


MADE_BY = re.compile(r"^Made by `(?P<command>.+?)`\.?$", re.MULTILINE)


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def select(names: Sequence[str], items: Sequence[T]) -> list[T]:
    """Return the items of these names, or all if there are no names; raise UsageError for one that is unknown."""
    known = {item.name: item for item in items}
    for name in names:
        if name not in known:
            raise UsageError(f"no task '{name}' in this experiment.", hint=near(name, known) or ", ".join(known))
    return [known[name] for name in names] if names else list(items)


def made_by(out: Path) -> str:
    """Return the command that the page in a folder says it was made by; '' if there is none."""
    path = out / "table.md"
    found = MADE_BY.search(path.read_text()) if path.is_file() else None
    return found["command"] if found else ""


def write_page(lines: Sequence[str], out: Path, command: str) -> str:
    """Write a page, with the command that makes it, as OUT/table.md; return it."""
    page = "\n".join([*lines, *([f"Made by `{command}`."] if command else [])]) + "\n"
    with writing(out / "table.md"):
        (out / "table.md").write_text(page)
    return page
