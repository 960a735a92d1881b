"""The same methods on several corpora: a comparison for each, then one table over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adaptree.analysis.compare import compare
from adaptree.analysis.compare.files import read
from adaptree.analysis.experiments import summary
from adaptree.analysis.experiments.corpora import Corpus, cut
from adaptree.analysis.experiments.setup import Setup, select


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
        """Compare the methods on each corpus; return the page over all."""
        out = setup.out
        for corpus in select(setup.tasks, self.tasks):
            train, test = cut(corpus, setup.data, out / "rows")
            setup.on_event({"event": "note", "text": corpus.name})
            compare(
                train, test=test, methods=self.methods, out=out / corpus.name, rows=self.rows, epochs=(self.epochs,),
                base=setup.base, seeds=setup.seeds or self.more_seeds.get(corpus.name, self.seeds),
                threads=setup.threads, title=corpus.name, command=setup.command, on_event=setup.on_event,
            )  # fmt: skip
        return self.summarise(out, setup.command)

    def summarise(self, out: Path, command: str) -> str:
        """Write one table and one figure over the corpora that are done; return the page."""
        done = [path for corpus in self.tasks if (path := out / corpus.name / "results.json").is_file()]
        return summary.write(
            [read(path) for path in done], out, title=self.title, reference=self.reference, command=command,
            draw=self.draw,
        )  # fmt: skip
