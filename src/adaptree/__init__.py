"""One frozen pretrained Transformer, a thin trained layer per task.

::

    import adaptree as at
    tuned = at.train("reviews.csv", name="reviews")
    tuned.predict(["great phone"])
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptree.api import check, evaluate, train, train_jointly
    from adaptree.compose import Expression, average, average_outputs, drop, fuse, parallel, rows, stack
    from adaptree.errors import AdaptreeError
    from adaptree.kinds import Prediction
    from adaptree.methods import (
        Bapna,
        BitFit,
        DiffPruning,
        Full,
        Head,
        Houlsby,
        Ia3,
        Lora,
        LotteryTicket,
        Method,
        Norms,
        Pal,
        Parallel,
        Pfeiffer,
        ScaledParallel,
        Tfidf,
        Top,
    )
    from adaptree.models.architectures import Architecture, LayerStack
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.models.loading import load_base
    from adaptree.models.tuned import Tuned, attach
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

__version__ = _version("adaptree")

# The public names and where they live; each is imported when first asked for, so that `import adaptree` is cheap.
_HOMES = {
    "AdaptreeError": "errors",
    "Architecture": "models.architectures",
    "Bapna": "methods",
    "Base": "models.base",
    "BitFit": "methods",
    "Bound": "models.bound",
    "DiffPruning": "methods",
    "Expression": "compose",
    "Full": "methods",
    "Head": "methods",
    "Houlsby": "methods",
    "Ia3": "methods",
    "LayerStack": "models.architectures",
    "Lora": "methods",
    "LotteryTicket": "methods",
    "Method": "methods",
    "Norms": "methods",
    "Pal": "methods",
    "Parallel": "methods",
    "Pfeiffer": "methods",
    "Prediction": "kinds",
    "ScaledParallel": "methods",
    "Store": "tasks.store",
    "Task": "tasks.task",
    "Tfidf": "methods",
    "Top": "methods",
    "Tuned": "models.tuned",
    "attach": "models.tuned",
    "average": "compose",
    "average_outputs": "compose",
    "check": "api",
    "drop": "compose",
    "evaluate": "api",
    "fuse": "compose",
    "load_base": "models.loading",
    "parallel": "compose",
    "rows": "compose",
    "stack": "compose",
    "train": "api",
    "train_jointly": "api",
}

__all__ = [
    "AdaptreeError",
    "Architecture",
    "Bapna",
    "Base",
    "BitFit",
    "Bound",
    "DiffPruning",
    "Expression",
    "Full",
    "Head",
    "Houlsby",
    "Ia3",
    "LayerStack",
    "Lora",
    "LotteryTicket",
    "Method",
    "Norms",
    "Pal",
    "Parallel",
    "Pfeiffer",
    "Prediction",
    "ScaledParallel",
    "Store",
    "Task",
    "Tfidf",
    "Top",
    "Tuned",
    "attach",
    "average",
    "average_outputs",
    "check",
    "drop",
    "evaluate",
    "fuse",
    "load_base",
    "parallel",
    "rows",
    "stack",
    "train",
    "train_jointly",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptree' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"adaptree.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
