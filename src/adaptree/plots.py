"""Figures. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#0b6e4f", "#c8553d", "#2f4b7c", "#a05195", "#ffa600")


def curves(histories: Mapping[str, Sequence[Mapping[str, Any]]], metric: Mapping[str, str], path: Path) -> None:
    """Loss and score by epoch of one or more tasks; the best epoch is marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, score = figure.subplots(1, 2)
    for colour, (name, history) in zip(COLOURS * len(histories), histories.items(), strict=False):
        epochs = [h["epoch"] for h in history]
        scores = [h[metric[name]] for h in history]
        loss.plot(epochs, [h["train_loss"] for h in history], color=colour, label=f"{name}, training")
        loss.plot(epochs, [h["validation_loss"] for h in history], color=colour, ls="--", label=f"{name}, validation")
        score.plot(epochs, scores, color=colour, label=name)
        best = min(range(len(history)), key=lambda i: (-scores[i], history[i]["validation_loss"]))
        score.plot(epochs[best], scores[best], "o", color=colour)
    loss.set(title="Loss", xlabel="epoch", yscale="log")
    score.set(
        title="Validation score (● best epoch, the one kept)",
        xlabel="epoch",
        ylabel=", ".join(sorted(set(metric.values()))),
    )
    for axis in (loss, score):
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=120)
