"""The same methods on several corpora: a comparison for each, then one table over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare import compare
from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger, summary
from adaptree.analysis.experiments.corpora import Corpus, count_lines, cut
from adaptree.analysis.experiments.ledger import Cell
from adaptree.analysis.experiments.setup import Setup, select
from adaptree.analysis.experiments.trainings import LENGTH
from adaptree.models.opening import base_of

if TYPE_CHECKING:
    from adaptree.models.base import Base


@dataclass(frozen=True)
class Grid:
    """Corpora and methods, and how many rows, epochs and seeds."""

    title: str
    tasks: Sequence[Corpus]
    methods: Sequence[str]
    reference: str
    """The method that the others are compared with."""
    rows: int
    epochs: int
    draw: Callable[[Sequence[summary.Row], Path], None]
    seeds: int = 1
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    """By corpus, where it is not `seeds`."""

    def run(self, setup: Setup) -> str:
        """Compare the methods on each corpus; return the page over all.

        A cell is the comparison of one corpus. It runs in OUT/rows/NAME, where `compare` goes on with its own cells.
        """
        if setup.redraw:
            found = ledger.alike(ledger.read(setup.out), "base", "methods", "rows", "epochs")
        else:
            base = base_of(setup.base, "auto", setup.threads)
            found = ledger.run([self._cell(corpus, setup, base) for corpus in select(setup.tasks, self.tasks)], setup)
        results = [cell["found"] for cell in found if "found" in cell]
        order = [corpus.name for corpus in self.tasks]
        results.sort(key=lambda result: order.index(result["title"]))
        return summary.write(results, setup.out, title=self.title, reference=self.reference, command=setup.command,
                             draw=self.draw)  # fmt: skip

    def _cell(self, corpus: Corpus, setup: Setup, base: Base) -> Cell:
        train, test = cut(corpus, setup.data, setup.out / "rows")
        seeds = setup.seeds or self.more_seeds.get(corpus.name, self.seeds)
        asked = {
            "task": corpus.name, "base": base.name, "methods": list(map(full_spelling, self.methods)),
            "rows": self.rows, "epochs": self.epochs, "seeds": seeds, "fingerprint": base.fingerprint,
            "files": {"train": file_digest(train), "test": file_digest(test)},
        }  # fmt: skip
        letters = train.stat().st_size / max(count_lines(train), 1)
        tokens = round(min(letters / 5, LENGTH) * self.rows * self.epochs * len(self.methods) * seeds)
        return Cell(asked, partial(self._compare, corpus.name, train, test, seeds, setup), tokens, "comparison")

    def _compare(self, name: str, train: Path, test: Path, seeds: int, setup: Setup) -> dict[str, Any]:
        found = compare(
            train, test=test, methods=self.methods, out=setup.out / "rows" / name, rows=self.rows,
            epochs=(self.epochs,), base=setup.base, seeds=seeds, threads=setup.threads, title=name,
            on_event=setup.on_event,
        )  # fmt: skip
        return {key: value for key, value in found.items() if key not in ("command", "date", "versions")}
