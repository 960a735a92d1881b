"""What `train` warns of: a task that is no better than a cheap baseline, and a loss that never fell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptree.kinds import Kind, metrics
from adaptree.methods import Method
from adaptree.training.settings import CONTRASTIVE, CROSS_ENTROPY

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

FELL = 0.8
"""A training loss that falls to this share of its start has fallen: nothing more is computed to know it."""
FIRST_STEPS = 3
"""Steps of which the least loss stands for the start of the training loss."""
LEAST = 0.99
"""A validation loss that stays above this share of its start has never fallen."""
NEAR = 3.0
"""A learning rate within this factor of the method's own is not far from it."""
FEW = 1000
"""Training rows below which more of them are the first thing to try."""


def not_learned(history: Sequence[dict[str, Any]], start: float, lr: float, method: Method) -> list[str]:
    """Return a warning with a better learning rate if no epoch's validation loss is clearly below the start."""
    lowest = min(epoch["validation_loss"] for epoch in history)
    if lowest < LEAST * start:
        return []
    rose = max(epoch["train_loss"] for epoch in history) > 1.1 * start
    large = rose or lr > NEAR * method.lr
    if method.lr / NEAR <= lr <= NEAR * method.lr:
        hint = f"--lr {lr / 10 if large else lr * 10:g}"
    else:
        hint = f"--lr {method.lr:g}, the default of {method.name}"
    return [
        f"the loss never fell below its start: {start:.4f} before training, {lowest:.4f} in the best epoch. Either the "
        f"learning rate {lr:g} is too {'large' if large else 'small'} or the texts do not tell the targets. Try {hint}."
    ]


def no_better(record: Record, kind: Kind) -> list[str]:
    """Return a warning if a task is no better than the baselines on the same rows.

    It is better than the majority class if all of its 95 % interval is, and better than TF-IDF if its score is.
    """
    part = "test" if record.metrics.get("test") else "validation"
    metric = str(record.settings.get("metric"))
    score = record.metrics.get(part, {}).get(metric)
    rivals = {name: scores[metric] for name, scores in record.baselines.items() if metric in scores}
    if score is None or not rivals:
        return []
    low, high = record.intervals.get(part, {}).get(metric, (score, score))
    end = high if metric in metrics.LOWER_IS_BETTER else low
    found = []
    if "majority" in rivals and not metrics.better(metric, end, rivals["majority"]):
        clearly = "clearly " if metrics.better(metric, score, rivals["majority"]) else ""
        found.append(f"not {clearly}better than the {kind.majority} ({rivals['majority']:.4f})")
    itself = record.method.startswith("tfidf")
    if "tfidf" in rivals and not itself and not metrics.better(metric, score, rivals["tfidf"]):
        found.append(f"not better than TF-IDF with a linear model ({rivals['tfidf']:.4f})")
    if not found:
        return []
    shown = f"{metric} {score:.4f} ({low:.4f} - {high:.4f}) on the {part} rows"
    if metrics.perfect(metric, score):
        return [f"this task is {' and '.join(found)}: {shown}. {_perfect(record, part)}"]
    return [f"this task is {' and '.join(found)}: {shown}. Try {_advice(record)}."]


def _perfect(record: Record, part: str) -> str:
    """Return what to do where nothing can be better: the rows are too easy, or too few, to tell two models apart."""
    rows = f"{record.data[part]:,} rows" if record.data.get(part) else "rows"
    return f"These {rows} are too easy or too few to tell them apart; score more or harder rows: --test FILE."


def _advice(record: Record) -> str:
    """Return what may help a task that has learned little, in the order in which to try it."""
    columns = ", ".join(f"'{name}'" for name in record.columns.values() if isinstance(name, str) and name)
    rows, settings = record.data.get("train", 0), record.settings
    tried = [
        f"adaptree check (are {columns} the right columns, --text and --label, and {record.kind} the right --kind?)"
    ]
    if rows < FEW:
        tried.append(f"more rows than {rows:,}")
    if settings.get("objective") == CONTRASTIVE:
        tried.append(f"--objective {CROSS_ENTROPY}")
    elif settings.get("best_epoch") == settings.get("epochs"):
        tried.append(f"--epochs {2 * settings['epochs']}")
    if "layers" in record.method:
        tried.append("all layers")
    return ", ".join([*tried, "another --lr (--search 10 tries some)"])
