"""Where tasks are kept."""

from adaptree.store.local import Store
from adaptree.store.summary import Summary

__all__ = ["Store", "Summary"]
