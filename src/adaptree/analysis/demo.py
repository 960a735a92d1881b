"""Two small hand-written tasks that ship with the package, learnt one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Listener, silent

if TYPE_CHECKING:
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

FOLDER = Path(__file__).parents[1] / "data" / "demo"
TASKS = ("tickets", "reviews")
LINES = {
    "tickets": (
        "The courier says it was handed over on Friday, but nobody here has seen a box.",
        "It keeps telling me that my phone number is not the one on file, so I am locked out.",
        "Would be lovely if the reports could be sent to my inbox every Monday.",
    ),
    "reviews": (
        "Third one this year, and this one did not even survive the weekend.",
        "We booked the same room again before we had even checked out.",
        "Lovely screen, shame about a battery that is empty by lunch.",
    ),
}


@dataclass(frozen=True)
class Demo:
    """What the demo showed."""

    tasks: dict[str, Bound]
    unchanged: bool
    """Whether the first task's logits and the base's fingerprint are, bit for bit, what they were before the second."""
    figure: Path


def data(name: str) -> tuple[Path, Path]:
    """A demo task's training file and its held-out one."""
    return FOLDER / f"{name}.csv", FOLDER / f"{name}_test.csv"


def run(store: Store, *, on_event: Listener = silent, **settings: Any) -> Demo:
    """Train the first task, then the second, and look whether the first one noticed."""
    import torch

    from adaptree.data.read import rows
    from adaptree.models.fingerprint import fingerprint
    from adaptree.models.loading import load_base
    from adaptree.reports import plots
    from adaptree.training.pipeline import train
    from adaptree.training.run import Run

    base = load_base()
    tasks: dict[str, Bound] = {}
    before: dict[str, torch.Tensor] = {}
    for name in TASKS:
        training, test = data(name)
        specification = Run.of(training, test=test, base=base, name=name, store=store, **settings)
        tasks[name] = train(specification, on_event)[0]
        before[name] = tasks[name].logits([row["text"] for _, row in rows(test)])
    first = TASKS[0]
    again = base.bind(store[first]).logits([row["text"] for _, row in rows(data(first)[1])])
    unchanged = torch.equal(again, before[first]) and fingerprint(base.hooked.backbone) == base.fingerprint
    figure = store.path / "demo-curves.png"
    plots.curves(
        {name: bound.task.record.history for name, bound in tasks.items()},
        "accuracy",
        {name: bound.task.record.settings["best_epoch"] for name, bound in tasks.items()},
        figure,
    )
    return Demo(tasks, unchanged, figure)
