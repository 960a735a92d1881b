"""A third party's package brings a kind in one file: installed with pip, found by its entry point, used everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base

import adaptree

Run = Callable[..., subprocess.CompletedProcess[str]]
CODE = '''
"""Grades in their order: the head says of each step between two grades whether it is passed (Frank and Hall 2001)."""
from __future__ import annotations
from dataclasses import dataclass, replace
from typing import ClassVar
import numpy as np
from adaptree.data.form import Form, LabelForm
from adaptree.kinds import Kind
from adaptree.kinds import bootstrap
from adaptree.kinds.findings import Section, Table
from adaptree.kinds.kind import texts_of

@dataclass(frozen=True)
class Grade:
    grade: str
    score: float

    def to_dict(self):
        return {"grade": self.grade, "score": self.score}

    def columns(self):
        return {"prediction": self.grade, "score": self.score}

@dataclass(frozen=True)
class Ordinal(Kind):
    name: ClassVar[str] = "ordinal"
    form: ClassVar[type[Form]] = LabelForm
    metrics: ClassVar[tuple[str, ...]] = ("distance", "accuracy")
    lower_is_better: ClassVar[tuple[str, ...]] = ("distance",)
    baselines: ClassVar[bool] = True
    chosen: ClassVar[tuple[str, ...]] = ("cut",)
    target_name: ClassVar[str] = "grade"
    labels: tuple[str | int, ...]
    cut: float = 0.5

    @property
    def width(self):
        return len(self.labels) - 1

    def loss(self, out, examples, targets, weights=None):
        import torch
        import torch.nn.functional as F
        passed = torch.as_tensor(np.asarray(targets)[:, None] > np.arange(self.width)).to(out)
        return F.binary_cross_entropy_with_logits(out, passed, reduction="none").mean(-1)

    def decode(self, out, examples):
        return (out.double().sigmoid() >= self.cut).sum(-1).numpy()

    def calibrated(self, out, examples, targets):
        tried = [replace(self, cut=cut) for cut in (0.5, 0.4, 0.6)]
        return min(tried, key=lambda kind: kind.score(targets, kind.decode(out, examples))["distance"])

    def predictions(self, out, examples, inputs, min_score):
        sure = (out.double().sigmoid() - self.cut).abs().min(-1).values.tolist()
        return [Grade(str(self.labels[i]), s) for i, s in zip(self.decode(out, examples).tolist(), sure, strict=True)]

    def _sums(self, targets, answers):
        off = np.abs(np.asarray(targets) - np.asarray(answers))
        return np.stack([off, off == 0, np.ones(len(off))], 1).astype(float)

    @staticmethod
    def _ratios(sums):
        return {"distance": sums[:, 0] / sums[:, 2].clip(1), "accuracy": sums[:, 1] / sums[:, 2].clip(1)}

    def score(self, targets, answers):
        sums = self._sums(targets, answers).sum(0, keepdims=True)
        return {name: float(value[0]) for name, value in self._ratios(sums).items()}

    def intervals(self, targets, answers):
        return bootstrap.intervals(self._sums(targets, answers), self._ratios)

    @classmethod
    def describe(cls, record):
        return f"Gives {texts_of(record)} one of {len(record.labels)} grades."

    def findings(self, on):
        off = np.asarray(on.answers) - np.asarray(on.targets)
        return {"steps": [{"off": int(step), "rows": int((off == step).sum())} for step in np.unique(off)]}

    @classmethod
    def sections(cls, found, record):
        rows = [(each["off"], each["rows"]) for each in found["steps"]]
        return [Section("Steps off", [Table(("steps", "rows"), rows)])]
'''


def wheel(folder: Path, code: str) -> Path:
    """A wheel as pip takes it."""
    path = folder / "grades-1.0-py3-none-any.whl"
    files = {
        "grades.py": code,
        "grades-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: grades\nVersion: 1.0\n",
        "grades-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "grades-1.0.dist-info/entry_points.txt": "[adaptree.kinds]\nordinal = grades:Ordinal\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        record = "".join(f"{n},sha256={hashlib.sha256(t.encode()).hexdigest()},{len(t)}\n" for n, t in files.items())
        archive.writestr("grades-1.0.dist-info/RECORD", record + "grades-1.0.dist-info/RECORD,,\n")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugin")


@pytest.fixture(scope="module")
def run(root: Path) -> Run:
    """The command, in an environment that has the package; its code can be given, None leaves it out."""

    def run(*words: object, code: str | None = CODE) -> subprocess.CompletedProcess[str]:
        paths = [str(Path(adaptree.__file__).parents[1])]
        if code is not None:
            where = root / hashlib.sha256(code.encode()).hexdigest()[:8]
            if not where.exists():
                where.mkdir()
                install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
                made = [*install, str(where / "lib"), str(wheel(where, code))]
                subprocess.run(made, check=True, capture_output=True)
            paths.append(str(where / "lib"))
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "ADAPTREE_STORE": str(root / "store"),
        }  # fmt: skip
        command = [sys.executable, "-m", "adaptree", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return run


@pytest.fixture(scope="module")
def base(root: Path) -> Path:
    return tiny_base(root / "base")


@pytest.fixture(scope="module")
def data(root: Path) -> Path:
    """Texts with more or fewer beasts, and a grade from 1 to 4 that counts them."""
    rng, path = random.Random(0), root / "grades.jsonl"
    with path.open("w") as stream:
        for i in range(90):
            words = [rng.choice(("lion", "bear") if j < i % 4 else ("saw", "drill")) for j in range(4)]
            row = {"text": f"the {' '.join(words)} {rng.choice('abcd')}", "grade": 1 + i % 4}
            stream.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(run: Run, base: Path, data: Path) -> dict[str, Any]:
    words = ("--kind", "ordinal", "--label", "grade", "--base", base, "--format", "json")
    done = run("train", data, "--name", "g", "--method", "houlsby:8", "--epochs", 2, "--lr", 5e-3, *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_check_reads_its_file(run: Run, base: Path, data: Path) -> None:
    done = run("check", data, "--kind", "ordinal", "--label", "grade", "--base", base, "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kind"] == "ordinal"
    assert [share["label"] for share in report["balance"]] == [1, 2, 3, 4]
    assert "no kind 'ordinall'" in run("check", data, "--kind", "ordinall", "--base", base).stderr


@pytest.mark.slow
def test_it_is_trained_scored_and_judged_by_its_own_metrics(trained: dict[str, Any]) -> None:
    assert trained["kind"] == "ordinal"
    assert set(trained["metrics"]["validation"]) == {"distance", "accuracy"}
    assert set(trained["intervals"]["validation"]) == {"distance", "accuracy"}
    assert set(trained["baselines"]) == {"majority", "tfidf"}


@pytest.mark.slow
def test_predict_and_evaluate(run: Run, trained: dict[str, Any], data: Path) -> None:
    done = run("predict", "g", "the lion bear lion bear", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"grade", "score"}
    done = run("predict", "g", "--file", data)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "text,grade,prediction,score"
    done = run("evaluate", "g", data, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["test"]["distance"] < 2


@pytest.mark.slow
def test_the_card_tells_what_the_kind_knows_and_stays_plain_without_it(
    run: Run, trained: dict[str, Any], root: Path
) -> None:
    card = next(root.glob("store/**/g/**/README.md")).read_text()
    assert "Gives a text one of 4 grades." in card
    assert "## Steps off" in card
    assert "| text | grade |" in card
    shown = run("show", "g", code=None)
    assert shown.returncode == 0, shown.stderr
    assert "A task of kind ordinal." in shown.stdout
    listed = json.loads(run("list", "--format", "json", code=None).stdout)
    assert listed[0]["kind"] == "ordinal"
    refused = run("predict", "g", "the lion", code=None)
    assert refused.returncode == 2
    assert "kind 'ordinal'" in refused.stderr


@pytest.mark.slow
def test_it_is_predicted_beside_tasks_of_other_kinds(
    run: Run, trained: dict[str, Any], base: Path, data: Path, root: Path
) -> None:
    other = ("--label", "grade", "--kind", "regress", "--method", "houlsby:8", "--epochs", 1, "--base", base)
    done = run("train", data, "--name", "number", *other)
    assert done.returncode == 0, done.stderr
    done = run("predict", "parallel(g, number)", "the lion saw", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["g"]) == {"grade", "score"}
    assert set(found["number"]) == {"value"}
    (root / "rows.csv").write_text("task,text\ng,the lion\nnumber,the saw\n")
    done = run("predict", "rows(g, number)", "--file", root / "rows.csv", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "grade" in lines[0]
    assert "value" in lines[1]


@pytest.mark.slow
def test_methods_are_compared_on_it(run: Run, base: Path, data: Path, root: Path) -> None:
    done = run(
        "compare", data, "--kind", "ordinal", "--label", "grade", "--method", "houlsby:4", "--method", "head",
        "--seeds", 1, "--epochs", 1, "--base", base, "--out", root / "compared", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((root / "compared" / "results.json").read_text())
    assert found["metric"] == "distance"
    assert found["data"]["kind"] == "ordinal"
    assert set(found["floors"]) == {"majority", "tfidf"}


@pytest.mark.slow
def test_what_it_chose_on_validation_is_in_the_checkpoint_and_the_record(trained: dict[str, Any], root: Path) -> None:
    record = json.loads(next(root.glob("store/**/g/**/task.json")).read_text())
    assert record["extra"]["cut"] in (0.4, 0.5, 0.6)


def test_a_kind_that_cannot_be_loaded_is_named_with_its_package(run: Run, base: Path, data: Path, root: Path) -> None:
    broken = "import something_that_is_not_there\n"
    done = run("check", data, "--kind", "ordinal", "--label", "grade", "--base", base, code=broken)
    assert done.returncode == 2
    assert "grades" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("check", data, "--label", "grade", "--base", base, code=broken).returncode == 0
