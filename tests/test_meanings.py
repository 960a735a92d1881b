"""What has no mean is refused: answers that are spelled alike and mean other things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.cli import main
from adaptree.errors import CompositionError
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store
from tests.bases import tiny_base

TEXTS = [f"{first} {second}" for first in ("lion", "bear", "plum", "pear") for second in ("old", "new", "near")] * 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, base: Base) -> Store:
    """Two tasks of the same numbers in another order, one with one label a text and one with several."""
    kept = Store(tmp_path_factory.mktemp("store"))
    options: dict[str, Any] = {"base": base, "method": "pfeiffer:4", "epochs": 1, "store": kept, "baselines": False}
    numbers = [{"text": text, "price": float(i), "size": float(-i * i)} for i, text in enumerate(TEXTS)]
    at.train(numbers, name="prices", label="price,size", kind="regress", **options)
    at.train(numbers, name="sizes", label="size,price", kind="regress", **options)
    one = [{"text": text, "label": "xy"[i % 2]} for i, text in enumerate(TEXTS)]
    several = [{"text": text, "label": [["x"], ["y"], ["x", "y"]][i % 3]} for i, text in enumerate(TEXTS)]
    at.train(one, name="one", **options)
    at.train(several, name="several", **options)
    return kept


@pytest.mark.parametrize("block", ["average", "average_outputs"])
@pytest.mark.parametrize("parts", ["prices, sizes", "one, several", "several, one"])
def test_answers_of_other_meanings_are_not_averaged(base: Base, store: Store, block: str, parts: str) -> None:
    with pytest.raises(CompositionError, match=r"differ in (kind|what their numbers stand for)"):
        base.bind(f"{block}({parts})", tasks=store)


def test_several_numbers_are_evaluated_from_the_command_line(
    store: Store, base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "numbers.csv"
    lines = [f"{text},{i},{-i * i}" for i, text in enumerate(TEXTS)]
    file.write_text("\n".join(["text,price,size", *lines]))
    words = ["evaluate", "prices", str(file), "--store", str(store.path), "--base", base.location]
    assert main(words) == 0
    assert "pearson_price" in capsys.readouterr().out
