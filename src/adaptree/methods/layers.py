"""Which layers of a base: how a user writes them, and which ones `--fast` trains."""

from __future__ import annotations

import re

from adaptree.errors import UsageError


def parse_layers(spec: str | None, depth: int) -> tuple[int, ...]:
    """Return the layer numbers, from 0, that '3-5', '0,2,4', 'top:2' or None (all) stand for."""
    if spec is None:
        return tuple(range(depth))
    there = f"This base has layers 0-{depth - 1}."
    chosen: set[int] = set()
    for part in spec.replace(" ", "").split(","):
        if match := re.fullmatch(r"top:(\d+)", part):
            n = int(match[1])
            if not 1 <= n <= depth:
                raise UsageError(f"layers='{spec}': there is no top {n} of {depth} layers.", hint=there)
            chosen.update(range(depth - n, depth))
        elif match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            low, high = int(match[1]), int(match[2] or match[1])
            if low > high or high >= depth:
                raise UsageError(f"layers='{spec}': no such layers.", hint=there)
            chosen.update(range(low, high + 1))
        else:
            raise UsageError(f"layers='{spec}' cannot be read.", hint="Write 3-5, 0,2,4 or top:2.")
    return tuple(sorted(chosen))


def top_layers(depth: int) -> int:
    """Return how many layers --fast trains, from the top: two thirds."""
    return max(1, round(2 * depth / 3))
