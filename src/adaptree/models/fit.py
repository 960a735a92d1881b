"""Whether a task fits a base: its record and its weights are compared with what its method and kind make there.

Checksums say that files are as they were written, and not who wrote them: a task whose numbers would be computed with
in the wrong way, or not at all, is refused with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch import Tensor

from adaptree import kinds
from adaptree.compose.compile import method_of
from adaptree.data.foreign_json import has_type
from adaptree.errors import AdaptreeError, MethodError, TaskCorrupt, WrongBase
from adaptree.kinds import Kind, check_pooling
from adaptree.methods import METHODS, Method
from adaptree.methods.method import COMPOSED, Shapes
from adaptree.tasks.record import FUSES, RECORD, TENSORS, Record, corrupt

if TYPE_CHECKING:
    from torch import nn

    from adaptree.models.base import Base
    from adaptree.models.sites import Sites
    from adaptree.tasks.task import Task

ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
"""What a record with values of the wrong kind raises where they are used."""
MANY, TIMES = 10_000_000, 16
"""A method that takes so many weights, and so many times those that are there, is not tried out."""


def check_fit(task: Task, base: Base, known: dict[Any, Shapes]) -> None:
    """Raise WrongBase for a task of another base, and TaskCorrupt if its record or its weights do not fit it.

    `known` remembers the shapes of the methods' weights on this base.
    """
    record = task.record
    if record.base.get("fingerprint") != base.fingerprint:
        raise WrongBase(
            f"the task '{record.name}' was trained on another base, {record.base.get('name')}, not on {base.name}.",
            hint=f"Load that base: --base {record.base.get('name')}, or its folder.",
        )
    method = _method(task)
    kind = _kind(record, base)
    if kind is not None and not method.standalone:
        _check_inputs(record, kind, base)
    if kind is None:
        head = None
    elif method.standalone:
        head = {"head.weight": ((kind.width, None), torch.float32), "head.bias": ((kind.width,), torch.float32)}
    else:
        head = kind.shapes(base.width)
    check_weights(task, method, base.hooked.sites, base.hooked.backbone, head, known)


def check_weights(
    task: Task,
    method: Method,
    sites: Sites,
    backbone: nn.Module,
    head: Shapes | None = None,
    known: dict[Any, Shapes] | None = None,
) -> None:
    """Raise TaskCorrupt if a task's weights are not those of its method in a model; without `head`, any head will do.

    A task of a user's own model may have weights in any precision.
    """
    record, v = task.record, task.weights
    if head is None:
        v = {name: tensor for name, tensor in v.items() if not name.startswith("head.")}
    try:
        wanted = _shapes(task, method, sites, backbone, {} if known is None else known) | (head or {})
        own = next(backbone.parameters()).dtype
        why = _difference(v, wanted, record, own) or method.problem(sites, backbone, v)
    except (AdaptreeError, RuntimeError, MemoryError, *ODD) as error:
        if isinstance(error, TaskCorrupt):
            raise
        what = error.what if isinstance(error, AdaptreeError) else str(error).partition("\n")[0]
        raise corrupt(record.reference, RECORD, f"{_method_said(record)} does not fit the base: {what}") from error
    if why:
        raise corrupt(record.reference, TENSORS, why)


def _method(task: Task) -> Method:
    """Return the method of a task; raise TaskCorrupt where its spelling makes no sense."""
    spelling = task.record.method
    try:
        return method_of(task)
    except MethodError as error:
        name = spelling.partition("(")[0].partition(":")[0].strip()
        if name.isidentifier() and name not in METHODS and name not in COMPOSED:
            raise  # of a package that is not installed
        raise corrupt(task.record.reference, RECORD, f"{_method_said(task.record)}: {error.what}") from error
    except ODD as error:
        raise corrupt(task.record.reference, RECORD, f"{_method_said(task.record)} is no method") from error


def _method_said(record: Record) -> str:
    return f"the method {record.method!r:.80}"


def _kind(record: Record, base: Base) -> Kind | None:
    """Return the kind of a task, or None if there is none such; raise TaskCorrupt if the record does not fit it."""
    cls = kinds.find(record.kind)
    if cls is None:
        return None
    values = {"labels": record.labels, **record.extra}
    for name, hint in _types(cls).items():
        if name in values and not has_type(values[name], hint):
            raise corrupt(record.reference, RECORD, f"'{name}' has the wrong type for kind {record.kind}")
    try:
        kind = cls.from_record(record, base.encoder)
        why = kind.problem() or ("" if kind.width > 0 else f"a task of kind {record.kind} has labels")
    except ODD as error:
        raise corrupt(record.reference, RECORD, f"it lacks a value that kind {record.kind} needs ({error})") from error
    if why:
        raise corrupt(record.reference, RECORD, why)
    return kind


@cache
def _types(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a kind's fields; of one in another package they may be unknown here, and are not checked."""
    try:
        hints = get_type_hints(cls)
    except NameError:
        return {}
    return {field.name: hints[field.name] for field in fields(cls)}


def _check_inputs(record: Record, kind: Kind, base: Base) -> None:
    """Raise TaskCorrupt if inputs cannot be encoded or pooled as the record says."""
    pair = bool(record.columns.get("pair"))
    if not 0 < record.max_length <= base.limit or base.encoder.room(record.max_length, pair=pair) < 1:
        most = f"1 to {base.limit} tokens, special ones included, go into {base.name}"
        raise corrupt(record.reference, RECORD, f"'max_length' is {record.max_length}, and {most}")
    try:
        check_pooling(record.pooling)
    except AdaptreeError as error:
        raise corrupt(record.reference, RECORD, error.what.rstrip(".")) from error


def _shapes(task: Task, method: Method, sites: Sites, backbone: nn.Module, known: dict[Any, Shapes]) -> Shapes:
    """Return the shapes of a method's weights in a model, from `known` if they are there."""
    parts = tuple(part.record.method for part in task.parts.values()) if FUSES in task.record.extra else ()
    key = (task.record.method, parts)
    if key not in known:
        if type(method).shapes is Method.shapes:
            there = sum(tensor.numel() for name, tensor in task.weights.items() if not name.startswith("head."))
            with warnings.catch_warnings():  # training warned of a size that is larger than the width
                warnings.simplefilter("ignore")
                takes = sum(method.count(sites, backbone).values())
            if takes > max(MANY, TIMES * there):
                why = f"it has {there:,} weights, and {_method_said(task.record)} takes {takes:,}"
                raise corrupt(task.record.reference, TENSORS, why)
        known[key] = method.shapes(sites, backbone)
    return known[key]


def _difference(v: Mapping[str, Tensor], wanted: Shapes, record: Record, own: torch.dtype) -> str:
    """Return the first difference between weights and the shapes that are expected, in words; '' if there is none.

    Weights may also have the precision of the base, `own`.
    """
    for name, (shape, dtype) in wanted.items():
        tensor = v.get(name)
        if tensor is None:
            return f"it lacks the weight '{name}'"
        if tensor.dim() != len(shape) or any(n not in (None, m) for n, m in zip(shape, tensor.shape, strict=True)):
            return f"'{name}' is {_sized(tensor.shape)}, and must be {_sized(shape)}"
        any_precision = record.kind == "attached" or tensor.dtype == own
        loose = any_precision and tensor.is_floating_point() and dtype.is_floating_point
        if tensor.dtype != dtype and not loose:
            return f"'{name}' is of type {_typed(tensor.dtype)}, and must be {_typed(dtype)}"
    if more := [name for name in v if name not in wanted]:
        return f"it has a weight '{more[0]}', which {record.method} has no place for"
    return ""


def _sized(shape: Any) -> str:
    return " × ".join("any" if n is None else str(n) for n in shape) or "one number"


def _typed(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
