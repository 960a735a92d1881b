"""Where tasks are kept."""

from adaptree.store.local import Store, Summary

__all__ = ["Store", "Summary"]
