"""A shell completes commands, options and the names of stored tasks, without loading torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def adaptree(*words: str, **env: str) -> str:
    """What the command prints in a process of its own, which must load nothing heavy."""
    code = (
        "import sys; from adaptree.cli import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy'; sys.exit(code)"
    )
    asked = [sys.executable, "-c", code, *words]
    done = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, **env}, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed(typed: str, **env: str) -> list[str]:
    """What bash offers for the last word."""
    return adaptree(
        _ADAPTREE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(typed.count(" ")), **env
    ).split()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("reviews/1", "reviews/2", "rows/1", "lang/qu/1", "Not A Name/1", "\x1b[31m/1"):
        (tmp_path / "store" / "tasks" / name).mkdir(parents=True)
        (tmp_path / "store" / "tasks" / name / "task.json").write_text("not read")
    return tmp_path / "store"


def test_commands_and_options_are_completed() -> None:
    assert completed("adaptree sh") == ["show"]
    assert "--epochs" in completed("adaptree train --ep")


@pytest.mark.parametrize("command", ["predict", "show", "evaluate", "history", "remove", "explain", "rebase"])
def test_the_names_of_tasks_are_completed(store: Path, command: str) -> None:
    assert completed(f"adaptree {command} re", ADAPTREE_STORE=str(store)) == ["reviews"]


def test_the_store_of_the_line_is_looked_at_and_only_names_are_offered(store: Path, tmp_path: Path) -> None:
    typed = f"adaptree predict --store {store} "
    assert completed(typed, ADAPTREE_STORE=str(tmp_path / "none")) == ["lang/qu", "reviews", "rows"]
    assert completed("adaptree predict ", ADAPTREE_STORE=__file__) == []


def test_it_installs_itself(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is named here
    assert "completion installed" in adaptree("--install-completion", "bash", **env)
    assert "_ADAPTREE_COMPLETE" in (tmp_path / ".bash_completions" / "adaptree.sh").read_text()
    assert "_ADAPTREE_COMPLETE" in adaptree("--show-completion", "zsh", **env)
