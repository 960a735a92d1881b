"""Ways of tuning: each one small frozen dataclass in a file of its own, found by its name."""

from adaptree.methods.houlsby import Houlsby
from adaptree.methods.method import METHODS, Action, Before, Method, Params, Plan, parse
from adaptree.methods.pfeiffer import Pfeiffer

__all__ = ["METHODS", "Action", "Before", "Houlsby", "Method", "Params", "Pfeiffer", "Plan", "parse"]
