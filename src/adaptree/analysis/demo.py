"""The demo: two small tasks whose data ship with the package, trained one after the other on one base.

Then the first once more with a few rows a label, and with none: its labels' names ranked by the base alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Listener, silent

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

FOLDER = Path(__file__).parents[1] / "data" / "demo"
TASKS = ("tickets", "reviews")
LINES = {  # texts that neither task has seen, for `adaptree demo` to predict
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


FEW = 8
"""Rows a label of the first task's third training."""


@dataclass(frozen=True)
class Demo:
    """The two trained tasks, and whether the second left the first unchanged."""

    tasks: dict[str, Bound]
    unchanged: bool
    """Whether the first task's logits and the base's fingerprint are the same bits after the second training."""
    figure: Path
    few: Bound
    """The first task, trained on FEW rows a label."""
    zero_shot: float
    """The accuracy of the first task's label names, ranked by the base without training."""


def data(name: str) -> tuple[Path, Path]:
    """Return the training file and the test file of a demo task."""
    return FOLDER / f"{name}.csv", FOLDER / f"{name}_test.csv"


def run(store: Store, *, on_event: Listener = silent, **settings: Any) -> Demo:
    """Train the first task, then the second, and check that the first still gives the same logits."""
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
    few, zero_shot = _with_few_labels(base, store, on_event, settings)
    figure = store.path / "demo-curves.png"
    records = {name: bound.task.record for name, bound in tasks.items()}
    best = {name: record.settings["best_epoch"] for name, record in records.items()}
    with plots.style():
        plots.save(plots.curves({name: record.history for name, record in records.items()}, "accuracy", best), figure)
    return Demo(tasks, unchanged, figure, few, zero_shot)


def _with_few_labels(base: Base, store: Store, on_event: Listener, settings: Mapping[str, Any]) -> tuple[Bound, float]:
    """Train the first task on FEW rows a label; return it, and the accuracy of its label names without training."""
    from adaptree.data.read import rows
    from adaptree.models.zero_shot import ZeroShot
    from adaptree.training.pipeline import train
    from adaptree.training.run import Run

    training, test = data(TASKS[0])
    chosen: dict[str, list[dict[str, Any]]] = {}
    for _, row in rows(training):
        chosen.setdefault(row["label"], []).append(row)
    some = [row for label in chosen.values() for row in label[:FEW]]
    seed = {name: value for name, value in settings.items() if name != "epochs"}
    name = f"{TASKS[0]}-few"
    few = train(Run.of(some, test=test, base=base, name=name, store=store, baselines=False, **seed), on_event)[0]
    tested = [row for _, row in rows(test)]
    named = ZeroShot(base, {label: label.replace("_", " ") for label in sorted(chosen)})
    found = named.predict([row["text"] for row in tested])
    right = sum(answer.label == row["label"] for answer, row in zip(found, tested, strict=True))
    return few, right / len(tested)
