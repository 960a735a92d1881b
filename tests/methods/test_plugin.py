"""A third party's package brings a method: installed with pip, found by its entry point, trained, stored and used."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bases import tiny_base, words_csv

CODE = '''
"""A method of somebody else's: one learned vector per site, added to its output."""
from dataclasses import dataclass
from typing import ClassVar
import torch
from adaptree.methods import Method

@dataclass(frozen=True, kw_only=True, repr=False)
class Shift(Method):
    """h + b"""
    name: ClassVar[str] = "shift"
    main: ClassVar[str] = "start"
    paper: ClassVar[str] = "none"
    trains: ClassVar[str] = "a vector per site"
    choose: ClassVar[str] = "To show how."
    lr: ClassVar[float] = 1e-2
    start: float = 0.0

    def init(self, sites, model, generator):
        return {f"{s.name}.shift": torch.full((1, s.width), self.start) for s in sites.within(self.chosen(sites))}

    def plan(self, sites, v):
        def add(b):
            return lambda module, args, h: h + b
        return {s.path: add(v[f"{s.name}.shift"]) for s in sites.within(self.chosen(sites))}

    def count(self, sites, model):
        return {"adapters": sum(s.width for s in sites.within(self.chosen(sites))), "norms": 0}
'''


def wheel(folder: Path, code: str) -> Path:
    """A wheel as pip takes it."""
    path = folder / "shifty-1.0-py3-none-any.whl"
    files = {
        "shifty.py": code,
        "shifty-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shifty\nVersion: 1.0\n",
        "shifty-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "shifty-1.0.dist-info/entry_points.txt": "[adaptree.methods]\nshift = shifty:Shift\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        record = "".join(f"{n},sha256={hashlib.sha256(t.encode()).hexdigest()},{len(t)}\n" for n, t in files.items())
        archive.writestr("shifty-1.0.dist-info/RECORD", record + "shifty-1.0.dist-info/RECORD,,\n")
    return path


@pytest.fixture
def adaptree(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The command, in an environment that has the package; its code can be given."""

    def run(*words: object, code: str = CODE) -> subprocess.CompletedProcess[str]:
        where = tmp_path / hashlib.sha256(code.encode()).hexdigest()[:8]
        if not where.exists():
            where.mkdir()
            install = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--no-index",
                "--target",
                str(where / "lib"),
            ]
            subprocess.run([*install, str(wheel(where, code))], check=True, capture_output=True)
        path = os.pathsep.join([str(where / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "ADAPTREE_STORE": str(tmp_path / "store")}
        command = [sys.executable, "-m", "adaptree", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return run


@pytest.mark.slow
def test_an_installed_method_works_in_every_command(adaptree, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    base, data = tiny_base(tmp_path / "base"), words_csv(tmp_path / "words.csv")
    checked = adaptree("check", data, "--base", base)
    assert checked.returncode == 0, checked.stderr
    listed = json.loads(adaptree("methods", "--base", base, "--format", "json").stdout)
    assert {"method": "shift", "parameters": 4 * 32}.items() <= {r["method"]: r for r in listed}["shift"].items()
    done = adaptree(
        "train", data, "--name", "w", "--method", "shift:0.5", "--epochs", 1, "--base", base, "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "shift(start=0.5)"
    predicted = adaptree("predict", "w", "the lion", "--format", "json")
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)
    scored = adaptree("evaluate", "w", data, "--format", "json")
    assert scored.returncode == 0, scored.stderr
    assert 0 <= json.loads(scored.stdout)["metrics"]["test"]["accuracy"] <= 1
    card = adaptree("show", "w")
    assert "shift(start=0.5)" in card.stdout, card.stderr
    compared = adaptree(
        "compare", data, "--method", "shift:0.5", "--method", "head", "--seeds", 1, "--epochs", 1, "--base", base,
        "--out", tmp_path / "comparison", "--format", "json",
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    assert "shift(start=0.5)" in compared.stdout


@pytest.mark.slow
def test_a_method_that_cannot_be_loaded_is_named_with_its_package(adaptree, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    base, data = tiny_base(tmp_path / "base"), words_csv(tmp_path / "words.csv")
    broken = "import something_that_is_not_there\n"
    done = adaptree("train", data, "--name", "w", "--method", "shift", "--base", base, code=broken)
    assert done.returncode == 2
    assert "shifty" in done.stderr
    assert "Traceback" not in done.stderr
    assert adaptree("train", data, "--name", "w", "--epochs", 1, "--base", base, code=broken).returncode == 0
