"""Which objective a task is trained with, where the user does not say: by the number of rows a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptree import kinds
from adaptree.errors import UsageError
from adaptree.training import distributed
from adaptree.training.settings import CONTRASTIVE, CROSS_ENTROPY, Settings

if TYPE_CHECKING:
    from adaptree.data.dataset import Dataset
    from adaptree.methods import Method
    from adaptree.training.run import Run

FEW = 32
"""Up to this many rows a label, contrastive training is better than cross-entropy (results/lowdata)."""


def choose(run: Run, settings: Settings, method: Method, dataset: Dataset, rows: int) -> tuple[str, str]:
    """Return the objective for so many rows to train on, and why it was chosen; '' if there was nothing to choose.

    Raise UsageError if the user asks for contrastive training where it cannot be.
    """
    refused = _refused(run, settings, method, dataset)
    if settings.objective is not None:
        if settings.objective == CONTRASTIVE and refused:
            raise UsageError(f"contrastive training is not for this run: {refused}.", hint="--objective cross-entropy")
        return settings.objective, ""
    asked = settings.epochs or settings.max_steps or run.search or run.joint
    if asked or method.standalone or method.name == "head" or distributed.size() > 1:
        return CROSS_ENTROPY, ""
    labels = len(dataset.labels)
    if labels and kinds.get(dataset.kind).contrasts and not refused:
        share = rows / labels
        if share <= FEW:
            return CONTRASTIVE, f"{share:.3g} rows a label are few (up to {FEW})"
    return CROSS_ENTROPY, ""


def _refused(run: Run, settings: Settings, method: Method, dataset: Dataset) -> str:
    """Return why contrastive training cannot be, or ''."""
    if not kinds.get(dataset.kind).contrasts:
        return f"it contrasts whole texts by their labels, and kind {dataset.kind} has none such"
    if settings.as_text:
        return "labels are read as text, and not from a vector"
    if settings.windows:
        return "it gives each text one vector, and --windows gives several"
    if method.standalone or method.name == "head":
        return f"{method.name} changes nothing in the base that could move a vector"
    if method.stages > 1:
        return f"{method.name} is trained in stages of its own"
    if run.joint:
        return "the tasks of a joint training have labels of their own"
    if run.search:
        return "a search tries learning rates and epochs of cross-entropy"
    if settings.epochs:
        return "it counts steps (--max-steps), not epochs"
    if distributed.size() > 1:
        return "it needs a whole batch in one process"
    return ""
