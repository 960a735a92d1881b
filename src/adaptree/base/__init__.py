"""A frozen pretrained base: load it, know it again, run tasks over it."""

from adaptree.base.base import Base
from adaptree.base.bound import Bound
from adaptree.base.loading import load_base
from adaptree.base.run import forward, infer

__all__ = ["Base", "Bound", "forward", "infer", "load_base"]
