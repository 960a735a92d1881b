"""Tasks as scikit-learn estimators: texts in, labels or numbers out, in pipelines, cross-validation and grids.

from adaptree.sklearn import AdapterClassifier
AdapterClassifier(epochs=5).fit(texts, labels).predict(["great phone"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, assert_all_finite, check_is_fitted, column_or_1d

from adaptree import api
from adaptree.errors import UsageError
from adaptree.models.opening import base_of

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

Array = np.ndarray[Any, Any]


@lru_cache(maxsize=4)
def _base(name: str, device: str) -> Base:
    """Return a base, loaded once for all estimators of a process: a grid fits many."""
    return base_of(name, device, None)


class _Adapter(BaseEstimator):  # type: ignore[misc]
    """The part that both estimators share. X is a sequence of texts, or of pairs of texts."""

    _kind = ""

    def __init__(
        self,
        method: str = "houlsby",
        *,
        base: str = "minilm",
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        fast: bool = False,
        windows: bool = False,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.base = base
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.max_length = max_length
        self.fast = fast
        self.windows = windows
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a task on texts and their targets; a fifth is held out to choose the best epoch.

        `sample_weight` says how much each text counts in the loss: only ratios matter, and one of weight 0 is left out.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: there is nothing to learn from.")
        inputs = self._inputs(X)
        targets = column_or_1d(y, warn=True)
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} texts and {len(targets)} targets: give one for each.")
        weights = self._weights(inputs, targets, sample_weight)
        if weights is not None:
            inputs = [text for text, weight in zip(inputs, weights, strict=True) if weight]
            targets, weights = targets[weights > 0], weights[weights > 0]
        if len(inputs) < 2:
            raise ValueError(f"{len(inputs)} samples: at least 2 are needed, to train on and to validate.")
        rows: list[dict[str, Any]] = [
            {"text": text, "label": target}
            if isinstance(text, str)
            else {"text_a": text[0], "text_b": text[1], "label": target}
            for text, target in zip(inputs, self._targets(targets), strict=True)
        ]
        if weights is not None:
            rows = [{**row, "weight": weight} for row, weight in zip(rows, weights.tolist(), strict=True)]
        bound = api.train(
            rows, base=_base(self.base, self.device), method=self.method, kind=self._kind, fast=self.fast,
            epochs=self.epochs, lr=self.lr, batch_size=self.batch_size, max_length=self.max_length,
            windows=self.windows, seed=self.random_state, baselines=False, weight=None if weights is None else "weight",
        )  # fmt: skip
        self.task_ = bound.task
        self._bound = bound
        return self

    def _targets(self, y: Array) -> list[Any]:
        raise NotImplementedError

    def _weights(self, inputs: list[Any], y: Array, sample_weight: Any) -> Array | None:
        """Return how much each text counts in the loss; None where all count the same."""
        if sample_weight is None:
            return None
        return np.asarray(_check_sample_weight(sample_weight, inputs, dtype=np.float64, ensure_non_negative=True))

    def _inputs(self, X: Any) -> list[str | tuple[str, str]]:
        """Return X as texts or pairs; a subclass may take other inputs."""
        return as_texts(X)

    @property
    def bound_(self) -> Bound:
        """The trained task on its base."""
        check_is_fitted(self, "task_")
        if getattr(self, "_bound", None) is None:  # it came out of a pickle, which holds no base
            self._bound = _base(self.base, self.device).bind(self.task_)
        return self._bound

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "task_")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_bound", None)
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = True
        return tags


class AdapterClassifier(ClassifierMixin, _Adapter):  # type: ignore[misc]
    """One of several labels for a text or a pair.

    `class_weight` is "balanced", so that every class counts the same however rare, or a dict from classes to weights.
    """

    _kind = "classify"

    def __init__(
        self,
        method: str = "houlsby",
        *,
        base: str = "minilm",
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        fast: bool = False,
        windows: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            method, base=base, epochs=epochs, lr=lr, batch_size=batch_size, max_length=max_length, fast=fast,
            windows=windows, device=device, random_state=random_state,
        )  # fmt: skip
        self.class_weight = class_weight

    def _weights(self, inputs: list[Any], y: Array, sample_weight: Any) -> Array | None:
        weights = super()._weights(inputs, y, sample_weight)
        if self.class_weight is None:
            return weights
        by_class = np.asarray(compute_sample_weight(self.class_weight, y))
        return by_class if weights is None else by_class * weights

    def _targets(self, y: Array) -> list[Any]:
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {self.classes_[0]!r}.")
        return [f"{place:06d}" for place in places.tolist()]  # names that sort as the classes do

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of `classes_`."""
        predictions = self.bound_.predict(self._inputs(X))
        return np.array([list(found.scores.values()) for found in predictions]).reshape(-1, len(self.classes_))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each text."""
        chosen = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[chosen])


class AdapterRegressor(RegressorMixin, _Adapter):  # type: ignore[misc]
    """A number for a text or a pair."""

    _kind = "regress"

    def _targets(self, y: Array) -> list[Any]:
        y = np.asarray(y, dtype=np.float64)
        assert_all_finite(y, input_name="y")
        return y.tolist()  # type: ignore[no-any-return]

    def predict(self, X: Any) -> Array:
        """Return the number predicted for each text."""
        return np.array([found.value for found in self.bound_.predict(self._inputs(X))])


def as_texts(X: Any) -> list[str | tuple[str, str]]:
    """Return X as a list of texts or pairs, from a list, an array, or one or two columns of a frame."""
    if isinstance(X, str):
        raise UsageError("X is one text; estimators take several.", hint="Give a list: [text].")
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    found: list[str | tuple[str, str]] = []
    for item in X:
        if isinstance(item, str):
            found.append(str(item))
        elif isinstance(item, Sequence | np.ndarray) and len(item) == 2 and all(isinstance(part, str) for part in item):
            found.append((str(item[0]), str(item[1])))
        else:
            raise ValueError(f"X must hold texts or pairs of texts, not {item!r:.60}.")
    return found
