"""A size or rank that is larger than the base's width is allowed, and said in one line, wherever it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from adaptree import api, attach
from adaptree.methods import METHODS, parse
from adaptree.models.loading import load_base
from adaptree.models.sites import find
from tests import tiny
from tests.bases import tiny_base, words_csv

# Which field is measured against the width, by method: every one that has a size or a rank.
SIZED = {
    name: field.name
    for name, method in METHODS.items()
    for field in fields(method)
    if field.name in ("size", "rank") and not method.standalone
}


def test_the_methods_with_a_size_are_known() -> None:
    assert SIZED["lora"] == "rank"
    assert {"houlsby", "pfeiffer", "bapna", "parallel_adapter", "scaled_parallel", "houlsby_deep", "pal"} <= set(SIZED)


@pytest.mark.parametrize("method", SIZED)
def test_larger_than_the_width_warns_once_and_works(method: str) -> None:
    with pytest.warns(UserWarning, match="larger") as said:
        tuned = attach(tiny.model("bert"), parse(method, **{SIZED[method]: 36}))
    assert [str(each.message) for each in said] == [
        f"{method}: {SIZED[method]} 36 is larger than the width 32 of what it changes; less is usual."
    ]
    tiny.output(tuned, tiny.batch(tuned)).sum().backward()


@pytest.mark.parametrize("method", SIZED)
def test_as_large_as_the_width_does_not(method: str) -> None:
    small = {"heads": 4} if method == "pal" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(tiny.model("bert"), parse(method, **{SIZED[method]: 32}, **small))


def test_a_map_narrower_than_the_base_counts() -> None:
    """Qwen's heads are fewer for keys and values: 2 · 6 wide."""
    model = tiny.model("qwen3")
    with pytest.warns(UserWarning, match="rank 13 is larger than the width 12 "):
        parse("lora:13").init(find(model), model, torch.Generator())


def test_training_says_it_once(tmp_path: Path) -> None:
    base = load_base(tiny_base(tmp_path / "base"))
    with pytest.warns(UserWarning, match="houlsby: size 33 is larger than the width 32") as said:
        api.train(words_csv(tmp_path / "words.csv"), base=base, method="houlsby:33", epochs=1, baselines=False)
    assert len(said) == 1


@pytest.mark.slow
def test_on_the_command_line_it_is_one_line(tmp_path: Path) -> None:
    base, data = tiny_base(tmp_path / "base"), words_csv(tmp_path / "words.csv")
    args = ["train", data, "--name", "wide", "--base", base, "--store", tmp_path / "store", "--epochs", 1]
    done = subprocess.run(
        [sys.executable, "-m", "adaptree", *map(str, args), "--method", "lora:33"],
        capture_output=True, text=True, timeout=300, env={k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = "note: lora: rank 33 is larger than the width 32 of what it changes; less is usual."
    assert done.stderr.splitlines().count(told) == 1
