"""Times as text."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return seconds as text: 3.2 s, 45 s, 2 min 5 s."""
    whole = round(seconds)
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def about(seconds: float) -> str:
    """Return an estimated time as text, no more exact than it is: 5 s, 40 s, 3 min, 1 h 20 min."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {10 * (minutes % 60 // 10)} min"
