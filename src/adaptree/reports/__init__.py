"""Cards, figures and pages, and callbacks that log runs elsewhere."""

from __future__ import annotations

from adaptree.reports import callbacks

__all__ = ["callbacks"]
