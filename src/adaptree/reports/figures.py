"""The figures that a record has, made from it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptree.reports import drawing

if TYPE_CHECKING:
    from adaptree.tasks.task import Record

TITLES = {
    "course.svg": "Loss and score by epoch",
    "confusion.svg": "Confusion matrix",
    "calibration.svg": "How often it is right, by how sure it is",
    "scatter.svg": "Predicted against gold",
}


def figures(record: Record) -> dict[str, str]:
    """Every figure of a task as SVG, by the name of its file."""
    found: dict[str, Any] = record.extra.get("insight") or {}
    drawn = {"course.svg": course(record)}
    if matrix := found.get("confusion"):
        drawn["confusion.svg"] = drawing.confusion(matrix["labels"], matrix["counts"])
    if bins := found.get("calibration"):
        drawn["calibration.svg"] = drawing.calibration(bins["bins"], bins["error"])
    if targets := found.get("targets"):
        drawn["scatter.svg"] = drawing.scatter(targets)
    return {name: figure for name, figure in drawn.items() if figure}


def course(record: Record) -> str:
    """The course of a run of more than one epoch."""
    from adaptree.kinds import main_metric

    metric = main_metric(record)
    if len(record.history) < 2 or not any(metric in entry for entry in record.history):
        return ""
    return drawing.course(record.history, metric, int(record.settings.get("best_epoch") or 0))


def images(record: Record) -> dict[str, str]:
    """Each figure of a task as its card shows it, by the name of its file."""
    return {name: f"![{TITLES[name]}]({name})" for name in figures(record)}
