"""Rank label names for texts without any training: by how near the base's vector of a text is to that of a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.cells import as_text, is_empty
from adaptree.data.columns import guess, must_have
from adaptree.errors import DataError, UsageError
from adaptree.kinds.kind import Prediction
from adaptree.kinds.reading import Reader

if TYPE_CHECKING:
    from adaptree.models.base import Base

TEMPERATURE = 0.05
"""Cosines are divided by it before the softmax: it makes probabilities of them, and leaves their order."""
LARGEST = 1 << 20
"""Bytes of a file of labels at most."""


class ZeroShot:
    """A base and some labels, each with its description: predicts as a task of kind classify does, without training."""

    int8 = False
    truncated = 0
    columns: Mapping[str, Any] = {}

    def __init__(self, base: Base, labels: Mapping[str, str] | Sequence[str]) -> None:
        found = dict(labels) if isinstance(labels, Mapping) else {label: label for label in labels}
        if len(found) < 2 or len(found) < len(labels):
            twice = "two of them are the same" if len(found) < len(labels) else f"there is {len(found)}"
            raise UsageError(f"labels to choose from must be two or more different ones, and {twice}.")
        self.base, self.labels = base, found
        self.blank = 0
        """How many texts so far were empty, and got no prediction."""
        self._vectors = _directions(base, list(found.values()))

    def predict(self, inputs: Any, *, min_score: float | None = None) -> list[Prediction]:
        """Return a prediction for each text: the nearest label, and a probability for each."""
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        if any(not isinstance(text, str) for text in texts):
            raise UsageError("labels are ranked for single texts.", hint='Give "a text".')
        found = [Prediction() for _ in texts]
        full = [i for i, text in enumerate(texts) if not is_empty(text)]
        self.blank += len(texts) - len(full)
        if not full:
            return found
        directions = _directions(self.base, [texts[i] for i in full])
        names = list(self.labels)
        shares = (directions @ self._vectors.t() / TEMPERATURE).double().softmax(-1).tolist()
        for i, row in zip(full, shares, strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            sure = min_score is None or row[best] >= min_score
            scores = dict(zip(names, row, strict=True))
            found[i] = Prediction(label=names[best] if sure else None, score=row[best], scores=scores)
        return found

    def answer(self, inputs: Any, min_score: float | None = None) -> list[Prediction]:
        """Predict for inputs as `line` and `reader` return them."""
        return self.predict(inputs, min_score=min_score)

    def line(self, line: str) -> str:
        """Return a line that a user typed as an input: as it is."""
        return line

    def reader(self, first: Mapping[str, Any], columns: Mapping[str, str | None]) -> Reader:
        """Return a function from a file's row to its text; `first` is its first row, `columns` those to read."""
        names = list(first)
        named = columns.get("text")
        if named is not None:
            must_have(names, [named])
        column = named or (names[0] if len(names) == 1 else str(guess(names, [first], need_label=False).text))
        return lambda row, number, name: as_text(row.get(column), number, column, name)


def read_labels(given: str) -> dict[str, str]:
    """Return labels with their descriptions: 'a, b, c', or the lines of a file, each 'name' or 'name: description'."""
    try:
        is_file = Path(given).is_file()
    except OSError:  # too long for the name of a file
        is_file = False
    if not is_file and "," not in given and Path(given).suffix == ".txt":
        raise DataError(f"there is no file '{given}'.", hint='Labels: --labels "billing, delivery, praise"')
    if not is_file:
        return _described([part.strip() for part in given.split(",")], given)
    path = Path(given)
    if path.stat().st_size > LARGEST:
        raise DataError(f"'{path.name}' is too large for a file of labels.", hint="A line for each: name: description")
    try:
        return _described(path.read_text(encoding="utf-8-sig").splitlines(), path.name)
    except UnicodeDecodeError:
        raise DataError(f"'{path.name}' is not utf-8.", hint="A line for each label: name: description") from None


def _described(lines: Sequence[str], source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, _, description = (part.strip() for part in line.partition(":"))
        if not name:
            continue
        if name in found:
            raise UsageError(f"the label '{name}' is there twice in '{source[:60]}'.", hint="Remove one of them.")
        found[name] = f"{name}: {description}" if description else name
    if len(found) < 2:
        raise UsageError(
            "two labels or more are needed to choose from.",
            hint='--labels "billing, delivery, praise", or a file with a line for each: name: description',
        )
    return found


def _directions(base: Base, texts: Sequence[Any]) -> Any:
    """Return the base's vectors of texts, each of length 1."""
    import torch.nn.functional as F

    return F.normalize(base.features(list(texts)), dim=-1)
