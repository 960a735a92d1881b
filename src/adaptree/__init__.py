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
    from adaptree.api import check, evaluate, train
    from adaptree.base import Base, Bound, load_base
    from adaptree.errors import AdaptreeError
    from adaptree.heads import Prediction
    from adaptree.methods import Houlsby, Method, Pfeiffer
    from adaptree.sites import Architecture, Stack
    from adaptree.store import Store
    from adaptree.task import Task
    from adaptree.tuned import Tuned, attach

__version__ = _version("adaptree")

# The public names and where they live; each is imported when first asked for, so that `import adaptree` is cheap.
_HOMES = {
    "AdaptreeError": "errors",
    "Architecture": "sites",
    "Base": "base",
    "Bound": "base",
    "Houlsby": "methods",
    "Method": "methods",
    "Pfeiffer": "methods",
    "Prediction": "heads",
    "Stack": "sites",
    "Store": "store",
    "Task": "task",
    "Tuned": "tuned",
    "attach": "tuned",
    "check": "api",
    "evaluate": "api",
    "load_base": "base",
    "train": "api",
}

__all__ = [
    "AdaptreeError",
    "Architecture",
    "Base",
    "Bound",
    "Houlsby",
    "Method",
    "Pfeiffer",
    "Prediction",
    "Stack",
    "Store",
    "Task",
    "Tuned",
    "attach",
    "check",
    "evaluate",
    "load_base",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptree' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"adaptree.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
