"""train --config run.toml: options from a file, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bases import tiny_base, words_csv

from adaptree.cli import main
from adaptree.tasks.store import Store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    words_csv(root / "words.csv")
    tiny_base(root / "base")
    return root


def run(world: Path, folder: Path, toml: str, *words: str) -> int:
    (folder / "run.toml").write_text(toml)
    data, config = str(world / "words.csv"), str(folder / "run.toml")
    return main(["train", data, "--config", config, "--store", str(folder / "store"), *words])


def test_a_file_says_what_the_command_line_leaves_out(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = f'name = "words"\nbase = "{world}/base"\nmethod = "lora"\nsize = 4\nepochs = 3\nlr = 2e-3\nbatch_size = 16\n'
    toml += 'format = "json"\nquiet = true\nclass-weights = true\n'
    assert run(world, tmp_path, toml, "--epochs", "1") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["task"], found["method"], said.err) == ("words", "lora(rank=4)", "")
    settings = Store(tmp_path / "store")["words"].record.settings
    kept = {name: settings[name] for name in ("epochs", "lr", "batch_size", "class_weights")}
    assert kept == {"epochs": 1, "lr": 2e-3, "batch_size": 16, "class_weights": True}


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        ("epoch = 3", "Did you mean 'epochs'?"),
        ("[train]\nepochs = 3", "has 'train', which is no option"),
        ("epochs = [3, 5]", "'epochs' in"),
        ("fast = 1", "is not true or false"),
        ("epochs = true", "is not one value"),
        ("epochs = 2.5", "Invalid value for '--epochs'"),
        ("seed = 'many'", "Invalid value for '--seed'"),
        ("epochs: 3", "is not toml"),
        ("batch_size = 4\nbatch-size = 8", "says 'batch-size' twice"),
        ("debug = true", "has 'debug', which is no option"),
        ("config = 'other.toml'", "has 'config', which is no option"),
    ],
)
def test_what_is_wrong_in_it_is_said_in_a_line_and_nothing_is_trained(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], toml: str, what: str
) -> None:
    assert run(world, tmp_path, toml, "--name", "words") == 2
    said = capsys.readouterr()
    assert what in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "store").exists()


def test_a_file_that_is_not_there_is_named(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(world / "words.csv"), "--name", "words", "--config", "nowhere.toml"]) == 2
    assert "'nowhere.toml' cannot be read: No such file or directory." in capsys.readouterr().err
