"""Ways of tuning: each one small frozen dataclass, in a file of its own or beside its kin, found by its name.

A new method is a new file here: every module of this package is imported, and a class with a `name` registers itself.
It is then a `--method`, and its class is `adaptree.ClassName`.
"""

import importlib
import pkgutil

from adaptree.methods.method import (
    METHODS,
    Action,
    Before,
    BeforeNorm,
    Entry,
    Method,
    OwnNorm,
    Params,
    Plan,
    Step,
    parse,
)

__all__ = ["METHODS", "Action", "Before", "BeforeNorm", "Entry", "Method", "OwnNorm", "Params", "Plan", "Step", "parse"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
