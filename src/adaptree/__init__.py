"""One frozen pretrained Transformer, a thin trained layer per task.

::

    import adaptree as at
    tuned = at.train("reviews.csv", name="reviews")
    tuned.predict(["great phone"])

The class of every method is here too, by its name: at.Houlsby(size=64), at.Lora(rank=8).
"""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what a type checker sees; a method's class that is not named here is `Any` to it, and works as well
    from adaptree.api import ablate as ablate
    from adaptree.api import attach as attach
    from adaptree.api import check as check
    from adaptree.api import clean as clean
    from adaptree.api import evaluate as evaluate
    from adaptree.api import improve as improve
    from adaptree.api import stream as stream
    from adaptree.api import train as train
    from adaptree.api import train_jointly as train_jointly
    from adaptree.client import AsyncClient as AsyncClient
    from adaptree.client import Client as Client
    from adaptree.compose import Expression as Expression
    from adaptree.compose import average as average
    from adaptree.compose import average_outputs as average_outputs
    from adaptree.compose import drop as drop
    from adaptree.compose import fuse as fuse
    from adaptree.compose import parallel as parallel
    from adaptree.compose import rows as rows
    from adaptree.compose import stack as stack
    from adaptree.errors import AdaptreeError as AdaptreeError
    from adaptree.kinds import Prediction as Prediction
    from adaptree.methods import Method as Method
    from adaptree.methods.bapna import Bapna as Bapna
    from adaptree.methods.bitfit import BitFit as BitFit
    from adaptree.methods.dense import Full as Full
    from adaptree.methods.houlsby import Houlsby as Houlsby
    from adaptree.methods.ia3 import Ia3 as Ia3
    from adaptree.methods.lora import Lora as Lora
    from adaptree.methods.pfeiffer import Pfeiffer as Pfeiffer
    from adaptree.models.architectures import Architecture as Architecture
    from adaptree.models.architectures import LayerStack as LayerStack
    from adaptree.models.base import Base as Base
    from adaptree.models.bound import Bound as Bound
    from adaptree.models.loading import load_base as load_base
    from adaptree.models.tuned import Tuned as Tuned
    from adaptree.models.zero_shot import ZeroShot as ZeroShot
    from adaptree.reports import callbacks as callbacks
    from adaptree.tasks.store import Store as Store
    from adaptree.tasks.task import Task as Task

__version__ = _version("adaptree")

# torch's threads wait for each other many times in a step. By default they spin for long meanwhile, which on a machine
# with other work takes the cores from the very threads they wait for: there they sleep instead. On an idle machine
# sleeping costs a tenth or more, and a short spin less; should it become busy later, that is slower than sleeping, and
# far from what spinning for long costs. It has to be said before torch is loaded, and a user's own setting wins
# (`make bench`, the row busy).
_SHORT_SPIN = "3000"


def _busy() -> bool:
    """Return whether other processes are running just now on more than half of the cores, or nobody knows."""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0]) - 1  # without this one
    except (OSError, ValueError, IndexError):
        return True
    return running > (os.cpu_count() or 1) / 2


if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE"} if _busy() else {"GOMP_SPINCOUNT": _SHORT_SPIN})

# Where the public names are: each is imported when it is first used, so that `import adaptree` is cheap.
_HOMES = {
    "AdaptreeError": "errors",
    "Architecture": "models.architectures",
    "AsyncClient": "client",
    "Base": "models.base",
    "Bound": "models.bound",
    "Client": "client",
    "Expression": "compose",
    "LayerStack": "models.architectures",
    "Method": "methods",
    "Prediction": "kinds",
    "Store": "tasks.store",
    "Task": "tasks.task",
    "Tuned": "models.tuned",
    "ZeroShot": "models.zero_shot",
    "ablate": "api",
    "attach": "api",
    "average": "compose",
    "average_outputs": "compose",
    "callbacks": "reports",
    "check": "api",
    "clean": "api",
    "drop": "compose",
    "evaluate": "api",
    "fuse": "compose",
    "improve": "api",
    "load_base": "models.loading",
    "parallel": "compose",
    "rows": "compose",
    "stack": "compose",
    "stream": "api",
    "train": "api",
    "train_jointly": "api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"adaptree.{_HOMES[name]}"), name)
    elif name == "__all__":  # asked for by `from adaptree import *`
        return __dir__()
    elif (value := _methods().get(name) if name[:1].isupper() else None) is None:
        raise AttributeError(f"module 'adaptree' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_methods()])


def _methods() -> dict[str, Any]:
    from adaptree.methods.method import classes

    return dict(classes())
