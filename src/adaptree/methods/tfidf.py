"""Bag of words: the baseline without the base, which belongs in every table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.method import Method, Params, Shapes, check_number

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.core.bag import Bag
    from adaptree.models.sites import Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class Tfidf(Method):
    """TF-IDF over words and word pairs with a linear model: logistic regression, or ridge for numbers."""

    name: ClassVar[str] = "tfidf"
    main: ClassVar[str] = "c"
    paper: ClassVar[str] = "Spärck Jones 1972; the papers' no-BERT baseline"
    trains: ClassVar[str] = "a weight per word and label; nothing of the base"
    choose: ClassVar[str] = "First: seconds to train, and sometimes enough."
    lr: ClassVar[float] = 1.0  # never used: it learns at once
    standalone: ClassVar[bool] = True

    c: float = 10.0
    """Inverse strength of the regularisation."""
    ngrams: int = 2
    """Longest run of words that counts as one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "c", self.c, float, 1e-6)
        check_number(self.name, "ngrams", self.ngrams, int, 1)
        if self.layers is not None:
            raise MethodError("tfidf: it has no layers.", hint="Leave layers out.")

    def learn(self, texts: Sequence[Any], targets: Sequence[Any], classes: int) -> dict[str, Tensor]:
        """Return the words, their weights and the linear model's, as tensors; 0 classes are a regression."""
        import numpy as np
        import torch

        from adaptree.core import bag

        found = bag.fit(texts, targets, classes, c=self.c, ngrams=self.ngrams)
        if found is None:
            raise MethodError("tfidf: no word in these texts tells the labels apart.")
        words = np.frombuffer("\n".join(found.words).encode(), dtype=np.uint8)
        numbers = {"tfidf.idf": found.idf, "head.weight": found.coefficients, "head.bias": found.intercept}
        v = {name: torch.from_numpy(values.astype(np.float32)) for name, values in numbers.items()}
        return {"tfidf.words": torch.from_numpy(words.copy()), **v}

    def logits(self, v: Params, texts: Sequence[Any]) -> Tensor:
        """Return the scores of texts, (texts, labels)."""
        import torch

        return torch.from_numpy(self._bag(v).scores(texts)).float()

    def contributions(self, v: Params, text: Any) -> list[tuple[int, int, int, Any]]:
        """Return what each word adds to the scores, which are linear in the words' weights."""
        return self._bag(v).contributions(text)

    def _bag(self, v: Params) -> Bag:
        from adaptree.core.bag import Bag

        words = bytes(v["tfidf.words"].numpy()).decode().split("\n")
        idf, weight, bias = (v[name].double().numpy() for name in ("tfidf.idf", "head.weight", "head.bias"))
        return Bag(words, idf, weight, bias, self.ngrams)

    def shapes(self, sites: Sites, model: nn.Module) -> Shapes:
        import torch

        return {"tfidf.words": ((None,), torch.uint8), "tfidf.idf": ((None,), torch.float32)}

    def problem(self, sites: Sites, model: nn.Module, v: Params) -> str:
        try:
            words = bytes(v["tfidf.words"].numpy()).decode().split("\n")
        except UnicodeDecodeError:
            return "its words are not text"
        if len(set(words)) < len(words):
            return "a word is there twice"
        if {len(words)} != {len(v["tfidf.idf"]), v["head.weight"].shape[1]}:
            return f"it has {len(words):,} words, and weights for another number of them"
        return ""

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        raise MethodError("tfidf has nothing to put into a model.", hint="Use adaptree.train(…, method='tfidf').")

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {"adapters": 0, "norms": 0}
