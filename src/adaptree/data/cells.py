"""Single values of a data file, whatever library read it: absent ones, texts, lists and flags."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from adaptree.errors import DataError


def is_absent(value: Any) -> bool:
    """Return whether a cell is None or NaN, which pandas writes for a missing value."""
    return value is None or (isinstance(value, float) and value != value)


def is_empty(text: str) -> bool:
    """Return whether a text has nothing to read: blanks and characters that nobody sees, such as zero-width spaces."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def as_text(value: Any, number: int, column: str, name: str) -> str:
    """Return a cell as a text, "" where it is absent; raise DataError, with row and file, for lists and the like."""
    if isinstance(value, str):
        return value
    if is_absent(value):
        return ""
    import numpy as np  # only here: the command line completes words without it

    if isinstance(value, int | float | np.generic):
        return str(value)
    raise DataError(
        f"row {number} of '{name}': column '{column}' holds a {type(value).__name__}, not a text.",
        hint="Choose another column with --text COL or --text-pair COL.",
    )


def as_weight(value: Any, number: int, column: str, name: str) -> float:
    """Return a cell as a row's weight; raise DataError, with row and file, unless it is a number of at least 0."""
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        shown = "nothing" if is_absent(value) or not str(value).strip() else f"'{str(value)[:60]}'"
        raise DataError(
            f"row {number} of '{name}': column '{column}' holds {shown}, and a weight is a number of at least 0.",
            hint="Correct the row, or choose another column with --weight COL.",
        )
    return weight


def as_list(value: Any) -> list[Any] | None:
    """Return a list, a tuple or an array as a list; None for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else None


def as_flag(value: Any) -> bool | None:
    """Return what 1, true, yes and 0, false, no or an empty cell stand for; None for anything else."""
    word = str(value).strip().casefold()
    if word in ("1", "1.0", "true", "yes"):
        return True
    return False if word in ("0", "0.0", "false", "no", "") else None
