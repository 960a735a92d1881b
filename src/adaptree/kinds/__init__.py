"""Kinds of task, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.data.forms.tag import TagForm
from adaptree.data.source import Data
from adaptree.data.table import Table
from adaptree.errors import UsageError
from adaptree.kinds.answer import Answer
from adaptree.kinds.choose import Choose
from adaptree.kinds.classify import Classify
from adaptree.kinds.kind import Example, Kind, Out, Prediction, check_pooling
from adaptree.kinds.labels import Labels
from adaptree.kinds.mlm import Mlm
from adaptree.kinds.numbers import Numbers
from adaptree.kinds.regress import Regress
from adaptree.kinds.tag import Tag

if TYPE_CHECKING:
    from adaptree.data.encode import Encoder
    from adaptree.data.records import Records
    from adaptree.tasks.record import Record

__all__ = ["Classify", "Example", "Kind", "Out", "Prediction", "Regress", "check_pooling", "for_data", "for_record"]


def for_data(
    data: Data, rows: np.ndarray[Any, Any], encoder: Encoder, *, windows: bool = False, whole_words: bool = False
) -> Kind:
    """The kind that fits a file of data, with what it learns from its training rows."""
    if isinstance(data, Table):
        if data.kind == "classify":
            return Classify(data.labels, windows)
        targets = data.targets(rows).astype(np.float64)
        return Regress(float(targets.mean()), float(targets.std()) or 1.0, windows)
    if windows:
        raise UsageError("windows are for one label or one number a text.", hint="Leave out --windows.")
    return _of(data.kind, data.said, data.labels, encoder, _learned(data, rows) | {"whole_words": whole_words})


def _learned(data: Records, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What a kind needs to know of its training rows."""
    if "numbers" in data.said:
        values = np.asarray(data.targets(rows), dtype=np.float64)
        stds = [float(std) or 1.0 for std in values.std(0)]
        targets = str(data.said["numbers"]).split(",")
        return {"targets": targets, "means": values.mean(0).tolist(), "stds": stds}
    if isinstance(data.form, TagForm):
        return {"scheme": data.form.scheme}
    if data.kind == "answer":
        return {"impossible": any(not gold["answers"] for gold in data.targets(rows))}
    return {}


def for_record(record: Record, encoder: Encoder) -> Kind:
    """The kind of a stored task."""
    if record.kind == "classify" and not record.extra.get("several"):
        return Classify(tuple(record.labels), bool(record.extra.get("windows")))
    if record.kind == "regress" and "targets" not in record.extra:
        return Regress(record.extra["mean"], record.extra["std"], bool(record.extra.get("windows")))
    return _of(record.kind, record.columns, tuple(record.labels), encoder, record.extra, called=record.name)


def _of(
    kind: str,
    said: Mapping[str, Any],
    labels: Sequence[Any],
    encoder: Encoder,
    extra: Mapping[str, Any],
    called: str = "",
) -> Kind:
    if kind == "classify":
        return Labels(tuple(labels), **_known(Labels, extra))
    if kind == "regress":
        return Numbers(*(tuple(extra[key]) for key in ("targets", "means", "stds")))
    if kind == "tag":
        return Tag.of(labels, extra.get("scheme", "IOB2"))
    if kind == "answer":
        return Answer(**_known(Answer, extra))
    if kind == "choose":
        return Choose()
    if kind == "mlm":
        return Mlm(encoder.vocabulary, encoder.mask_id(), words=encoder.words(), **_known(Mlm, extra))
    raise UsageError(f"the task '{called}' is of kind '{kind}', which answers no texts.")


def _known(kind: type[Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of a kind's own fields."""
    return {field.name: extra[field.name] for field in fields(kind) if field.name in extra}
