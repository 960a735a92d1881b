"""Ways of tuning: each one small frozen dataclass, in a file of its own or beside its kin, found by its name.

A new method is a new file here: every module of this package is imported, and a class with a `name` registers itself.
"""

import importlib
import pkgutil

from adaptree.methods.bapna import Bapna
from adaptree.methods.bitfit import BitFit
from adaptree.methods.dense import Full, Top
from adaptree.methods.diff_pruning import DiffPruning
from adaptree.methods.fusion import Fusion
from adaptree.methods.houlsby import Houlsby
from adaptree.methods.ia3 import Ia3
from adaptree.methods.lora import Lora
from adaptree.methods.lt_sft import LotteryTicket, RandomTicket
from adaptree.methods.method import METHODS, Action, Before, BeforeNorm, Entry, Method, Params, Plan, Step, parse
from adaptree.methods.norms import Head, Norms
from adaptree.methods.pal import Pal
from adaptree.methods.parallel import HoulsbyMultiplicative, HoulsbyParallel, Parallel, ScaledParallel
from adaptree.methods.pfeiffer import Pfeiffer
from adaptree.methods.tfidf import Tfidf
from adaptree.methods.variants import (
    HoulsbyAttention,
    HoulsbyDeep,
    HoulsbyFeedforward,
    HoulsbyNorm,
)

__all__ = [
    "METHODS",
    "Action",
    "Bapna",
    "Before",
    "BeforeNorm",
    "BitFit",
    "DiffPruning",
    "Entry",
    "Full",
    "Fusion",
    "Head",
    "Houlsby",
    "HoulsbyAttention",
    "HoulsbyDeep",
    "HoulsbyFeedforward",
    "HoulsbyMultiplicative",
    "HoulsbyNorm",
    "HoulsbyParallel",
    "Ia3",
    "Lora",
    "LotteryTicket",
    "Method",
    "Norms",
    "Pal",
    "Parallel",
    "Params",
    "Pfeiffer",
    "Plan",
    "RandomTicket",
    "ScaledParallel",
    "Step",
    "Tfidf",
    "Top",
    "parse",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
