"""Kinds of task, each one frozen dataclass in a file of its own, found by its name.

A new kind is a new file here: every module of this package is imported, and a class with a `name` and a `form`
registers itself. Other packages add theirs as entry points of the group 'adaptree.kinds'.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from adaptree.errors import AdaptreeError, UsageError, near
from adaptree.kinds.kind import KINDS, Example, Kind, Out, Prediction, check_pooling

if TYPE_CHECKING:
    import numpy as np

    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder
    from adaptree.tasks.record import Record

__all__ = [
    "KINDS",
    "Example",
    "Kind",
    "Out",
    "Prediction",
    "check_options",
    "check_pooling",
    "find",
    "for_data",
    "for_record",
    "get",
    "main_metric",
    "names",
    "writes",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def names() -> list[str]:
    """Return the names of all kinds, also those of other packages."""
    load_plugins()
    return sorted(KINDS)


def get(name: str) -> type[Kind]:
    """Return the kind of a name; raise UsageError, with near names, if there is none such."""
    if name not in KINDS:
        load_plugins()
    if name not in KINDS:
        raise UsageError(
            f"no kind '{name}'.", hint=near(name, KINDS) or f"There are: --kind {', '.join(sorted(KINDS))}."
        )
    return KINDS[name]


def find(name: str) -> type[Kind] | None:
    """Return the kind of a record's name; None for tasks of no kind, or when its package is not installed."""
    try:
        return get(name)
    except AdaptreeError:
        return None


def writes(name: str) -> bool:
    """Return whether tasks of a kind write texts, so that their base has to."""
    kind = find(name)
    return kind is not None and kind.generates


def for_data(dataset: Dataset, rows: np.ndarray[Any, Any], encoder: Encoder, **options: Any) -> Kind:
    """Return the kind for a dataset, with what it learns from the examples to train on.

    `options` are settings that some kinds have as fields, such as `windows` and `whole_words`.
    """
    kind = get(dataset.kind)
    known = _fields(kind)
    return kind.from_data(dataset, rows, encoder, **{name: value for name, value in options.items() if name in known})


def can_window(dataset: Dataset) -> bool:
    """Return whether the setting `windows` would have a dataset's long texts read whole."""
    return "windows" in _fields(get(dataset.kind)) and not dataset.columns.get("pair")


def _fields(kind: type[Kind]) -> set[str]:
    return {field.name for field in fields(kind)}  # type: ignore[arg-type]


def check_options(kind: type[Kind], options: Mapping[str, Any]) -> None:
    """Raise UsageError for the first of some options that is given and that a kind cannot use.

    These are all options that some kinds have and others have not, but for `metric` (`Kind.check_metric`).
    """
    usable = {
        "text_pair": (len(kind.form.input_columns) > 1, "it reads one text a row"),
        "label": (kind.form.has_labels, "it needs no labels"),
        "merge_labels": (kind.form.merges_labels and not kind.numeric, "it is for labels of whole texts"),
        "windows": (
            "windows" in _fields(kind),
            "it reads long texts whole as it is" if kind.reads_whole else "it is for one label or one number a text",
        ),
        "whole_words": ("whole_words" in _fields(kind), "no words are hidden"),
        "as_text": ("as_text" in _fields(kind), "it is for one label a text"),
        "template": (kind.generates or bool(options.get("as_text")), "it writes no texts"),
        "cut": (kind.generates, "it writes no texts"),
        "class_weights": (kind.weighs_classes, "it is for rows of one label each"),
        "pooling": (not kind.reads_tokens, "its head reads every token"),
    }
    for name, value in options.items():
        fits, why = usable[name]
        if value not in (None, False) and not fits:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is not for kind {kind.name}: {why}.", hint=f"Leave out {flag}.")


def for_record(record: Record, encoder: Encoder) -> Kind:
    """Return the kind of a stored task; raise UsageError when it has none, or its package is not installed."""
    kind = find(record.kind)
    if kind is None:
        raise UsageError(
            f"the task '{record.name}' is of kind '{record.kind}', which cannot predict here.",
            hint=f"Known kinds: {', '.join(sorted(KINDS))}.",
        )
    return kind.from_record(record, encoder)


def main_metric(record: Record) -> str:
    """Return the metric that a task was judged by, else the first of its kind, else the first that it has."""
    if metric := record.settings.get("metric"):
        return str(metric)
    if kind := find(record.kind):
        return kind.metrics[0]
    return next(iter(record.metrics.get("test") or record.metrics.get("validation") or {}), "")


def load_plugins(*, strict: bool = True) -> None:
    """Import what other installed packages offer as kinds: entry points of the group 'adaptree.kinds'.

    Raise UsageError for one that cannot be imported; when not `strict`, leave it out.
    """
    for entry in _offered():
        if entry.name not in KINDS:
            try:
                entry.load()
            except Exception as error:
                if not strict:
                    continue
                package = entry.dist.name if entry.dist else entry.value
                raise UsageError(
                    f"the kind '{entry.name}' of {package} cannot be loaded: {type(error).__name__}: {error}",
                    hint=f"Update or remove it: pip uninstall {package}",
                ) from error


@cache
def _offered() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group="adaptree.kinds"))
