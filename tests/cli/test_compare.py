"""adaptree compare, as a person and as a program would use it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tests.bases import tiny_base, words_csv

import adaptree.cli.compare  # noqa: F401
from adaptree.analysis.compare import cells
from adaptree.cli import main


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compare")
    tiny_base(root / "base")
    words_csv(root / "words.csv", 90)
    words_csv(root / "test.csv", 30, seed=5)
    return root


@pytest.fixture
def words(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command up to its own options; cells run in this process."""
    monkeypatch.setattr(cells, "_run", cells.run_cell)
    found = ["compare", world / "words.csv", "--base", world / "base", "--out", tmp_path / "out", "--seeds", "1"]
    return [*map(str, found), "--epochs", "1", "--method", "pfeiffer:2"]


def test_compare_prints_a_table_and_says_how_far_it_is(
    words: list[str], world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--method", "houlsby(size=4, layers=7-9)", "--test", str(world / "test.csv")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    for word in ("pfeiffer:2", "test accuracy", "% of base", "memory", "TF-IDF", "majority class", "failed"):
        assert word in out
    assert "1/2  pfeiffer:2, epochs 1, seed 0" in err
    assert "2/2  houlsby(size=4, layers=7-9), epochs 1, seed 0   about" in err
    assert "✘ houlsby(size=4, layers=7-9): 1 failed: layers='7-9'" in err


def test_compare_reports_and_merges_spellings_of_a_label(
    words: list[str], world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (world / "words.csv").read_text().splitlines()
    spelled = [line.replace(",fruit", ",Fruit") if i % 2 else line for i, line in enumerate(lines)]
    (tmp_path / "spelled.csv").write_text("\n".join(spelled) + "\n")
    words[1] = str(tmp_path / "spelled.csv")
    assert main([*words, "--merge-labels", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["data"]["labels"]) == 3
    assert "merged as" in err
    assert main([*words, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["data"]["labels"]) == 4
    assert "--merge-labels" in err


def test_without_a_test_file_none_is_spoken_of(
    words: list[str], world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    said = "".join(capsys.readouterr())
    page = (tmp_path / "out" / "table.md").read_text()
    for word in ("test file", "to test", "test accuracy"):
        assert word not in said + page
    assert "One setting was tried for each method; its best epoch was chosen on validation.\n" in page
    assert main([*words, "--test", str(world / "test.csv")]) == 0
    assert "chosen on validation before the test file was opened." in (tmp_path / "out" / "table.md").read_text()


def test_compare_prints_json_and_csv(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["methods"][0]["method"] == "pfeiffer(size=2)"
    assert found["metric"] == "accuracy"
    assert main([*words, "--format", "csv", "--quiet"]) == 0
    out, err = capsys.readouterr()
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["validation"]) == found["methods"][0]["scores"]["validation"]["mean"]
    assert int(row["trained"]) == found["methods"][0]["trained"]
    assert err == ""


@pytest.mark.parametrize(
    ("more", "said", "code"),
    [
        (["--lr", "fast"], "--lr 'fast' is not a list of numbers", 2),
        (["--method", "houlsbi"], "no method 'houlsbi'", 2),
        (["--rows", "2"], "too few", 2),
        (["--label", "labl"], "labl", 1),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], more: list[str], said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *more]) == code
    err = capsys.readouterr().err.strip()
    assert said in err
    assert err.startswith("✘ ")
    assert "\n" not in err


def test_ctrl_c_says_how_to_go_on(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "_run", stop)
    assert main(words) == 1
    assert "Run the same command to go on." in capsys.readouterr().err


def test_when_every_method_fails_the_command_fails(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words[words.index("pfeiffer:2")] = "pfeiffer(size=2, layers=9)"
    assert main(words) == 1
    assert "no such layers" in capsys.readouterr().err
