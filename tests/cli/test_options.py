"""The options of the commands are the fields of `Run` and `Settings`, with the texts under them."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import typer

import adaptree as at
from adaptree.cli import main, options
from adaptree.cli.app import app
from adaptree.errors import UsageError
from adaptree.training.run import Run
from adaptree.training.settings import Settings

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("spec", [Run, Settings])
def test_every_field_is_explained(spec: type) -> None:
    texts = options.docstrings(spec)
    assert set(texts) == {f.name for f in fields(spec)}  # type: ignore[arg-type]
    assert all(re.search(r"[.…]$", text) for text in texts.values()), texts


def test_train_has_an_option_for_every_field_with_its_text_and_default() -> None:
    found = {param.name: param for param in COMMANDS["train"].params}
    for spec in (Run, Settings):
        for field in fields(spec):  # type: ignore[arg-type]
            if field.name in options.NOT_OPTIONS:
                continue
            option = found[field.name]
            assert f"--{field.name.replace('_', '-')}" in option.opts
            assert option.help.startswith(options.docstrings(spec)[field.name])
            if field.name != "name" and isinstance(field.default, str | int | float) and field.type != "bool":
                assert option.help.endswith(f"[default: {field.default}]")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("check", {"base", "kind", "text", "text_pair", "label", "encoding", "max_length", "seed", "validation"}),
        ("predict", {"base", "text", "text_pair", "encoding", "device", "threads", "int8", "min_score", "file"}),
        ("evaluate", {"base", "text", "text_pair", "label", "encoding", "device", "threads", "int8"}),
        ("compare", {"base", "validation", "test", "metric", "kind", "lr", "epochs", "batch_size", "retry", "rows"}),
        ("compose", {"name", "data", "on", "base", "epochs", "lr", "accumulate", "resume", "class_weights", "test"}),
        ("suggest", {"base", "kind", "seed", "top", "rows", "text", "label", "device"}),
        ("rebase", {"base", "name", "device", "threads", "trust_remote_code", "allow_pickle"}),
        ("demo", {"epochs", "seed", "threads", "store"}),
    ],
)
def test_other_commands_share_them(command: str, expected: set[str]) -> None:
    assert expected <= {param.name for param in COMMANDS[command].params}


def test_a_flag_whose_default_is_the_methods_can_be_switched_off_too() -> None:
    option = next(param for param in COMMANDS["train"].params if param.name == "dropout")
    assert (option.opts, option.secondary_opts, option.default) == (["--dropout"], ["--no-dropout"], None)
    assert options.given({"dropout": False, "windows": False, "epochs": None, "seed": 0}) == {
        "dropout": False,
        "seed": 0,
    }
    assert options.given({"dropout": None, "windows": True}) == {"windows": True}


def test_a_number_is_checked_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "nowhere.csv", "--name", "x", "--threads", "0"]) == 2
    assert "threads must be a whole number of at least 1" in capsys.readouterr().err
    assert main(["train", "nowhere.csv", "--name", "x", "--epochs", "many"]) == 2
    assert "--epochs" in capsys.readouterr().err


def test_train_shows_all_options_to_help_and_notebooks() -> None:
    shown = inspect.signature(at.train).parameters
    assert list(shown)[:2] == ["data", "on_event"]
    assert {"name", "method", "store", "epochs", "activation_cache"} <= set(shown)
    assert shown["batch_size"].default == 32


def test_an_unknown_option_offers_a_near_one() -> None:
    with pytest.raises(UsageError, match=r"no option 'batchsize'.*Did you mean 'batch_size'"):
        Run.of("data.csv", batchsize=3)
    with pytest.raises(UsageError, match="train_jointly"):
        at.train("data.csv", joint=True)


def test_the_command_alone_says_what_it_is_and_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "one frozen pretrained Transformer" in out
    for word in ("adaptree check", "adaptree train", "adaptree predict", "adaptree --help", "--install-completion"):
        assert word in out
    for line in out.splitlines():
        assert len(line) < 100
        for command in re.findall(r"adaptree ([a-z]+)", line):
            assert command in COMMANDS
