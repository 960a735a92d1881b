"""--fast, --search and --activation-cache as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bases import tiny_base, words_csv

from adaptree.cli import main


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A data file and a base of four layers, as words of a command."""
    root = tmp_path_factory.mktemp("world")
    return [str(words_csv(root / "words.csv")), "--base", str(tiny_base(root / "base", layers=4)), "--epochs", "2"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))


def train(world: list[str], tmp_path: Path, *words: str) -> int:
    return main(["train", *world, "--name", "words", "--store", str(tmp_path / "store"), "--size", "8", *words])


def test_fast_says_what_it_does_and_the_task_records_it(
    world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(world, tmp_path, "--fast", "--format", "json") == 0
    said = capsys.readouterr()
    assert "--fast: the top 3 of 4 layers are trained" in said.err
    assert "computing the 1 lower layer once for 90 texts" in said.err
    assert json.loads(said.out)["method"] == "houlsby(size=8, layers=top:3)"


def test_without_fast_it_says_what_would_be_quicker(
    world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(world, tmp_path) == 0
    assert "all layers are trained; --fast, or --layers top:3, leaves the lower ones alone" in capsys.readouterr().err


def test_a_search_is_told_trial_by_trial(world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    assert train(world, tmp_path, "--fast", "--search", "3") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert "houlsby(size=8, layers=top:3), lr 0.001" in lines[0]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--fast", "--layers", "top:2"], "--fast chooses the layers"),
        (["--activation-cache", "fp8"], "activation_cache cannot be 'fp8'"),
        (["--precision", "fp64"], "precision cannot be 'fp64'"),
        (["--accumulate", "0"], "accumulate must be"),
        (["--search", "0"], "--search"),
        (["--method", "tfidf", "--search", "3"], "no learning rate"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    world: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert train(world, tmp_path, *words) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("✘")]
    assert len(err) == 1
    assert what in err[0]
