from __future__ import annotations

import ast
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import adaptree as at
from adaptree import api
from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.hub.to_onnx import to_onnx
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import words_csv
from tests.hub import made

CLOSE = 1e-4
# torch's exporter takes seconds for the smallest model: one task in the fast tests, all others in the slow ones.
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return made.base(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="module")
def bound(base: Base) -> Bound:
    return base.bind(made.task(base, "houlsby:6"))


@pytest.fixture(scope="module", autouse=True)
def _untraced() -> Iterator[None]:
    """Without the thousands of records of torch's tracing, which pytest would keep."""
    log = logging.getLogger("torch.__trace")
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


@pytest.fixture(scope="module")
def folder(bound: Bound, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "model"
    found = to_onnx(bound, folder)
    assert (found.to, found.form, found.compared, found.int8) == ("onnx", "one graph", len(made.TEXTS), None)
    assert found.difference < CLOSE
    assert found.files == ["README.md", "labels.json", "model.onnx", "predict.py", "tokenizer.json"]
    return folder


BLOCKED = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("adaptree", "torch", "transformers", "tests"):
            raise ModuleNotFoundError(f"no {name} here")
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def predict(folder: Path, *words: str, stdin: str | None = None) -> list[Any]:
    """What predict.py prints, where neither adaptree nor torch nor transformers can be imported."""
    env = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(folder / "predict.py"), *words],
        capture_output=True, text=True, timeout=120, env=env, cwd=folder.parent, input=stdin,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_batch_and_length_gives_our_logits(bound: Bound, folder: Path) -> None:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    encoder = bound.base.encoder
    for lengths in ([3], [24], [2, 9], [7, 7, 7], [5, 1, 13, 24, 2]):
        rows = [encoder.row(rng.integers(5, 40, n).astype(np.int32)) for n in lengths]
        longest = max(len(row.ids) for row in rows)
        inputs = {
            "input_ids": np.stack([padded(row.ids, longest, encoder.pad_id) for row in rows]),
            "attention_mask": np.stack([padded(np.ones(len(row.ids)), longest, 0) for row in rows]),
            "token_type_ids": np.zeros((len(rows), longest), dtype=np.int64),
        }
        (logits,) = session.run(None, inputs)
        ours = bound.compute([[row] for row in rows]).numpy()
        assert logits == pytest.approx(ours, abs=CLOSE)


def padded(values: Any, length: int, fill: int) -> Any:
    found = np.full(length, fill, dtype=np.int64)
    found[: len(values)] = values
    return found


@pytest.mark.slow
def test_the_graph_is_one_valid_file_with_free_axes(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=False)
    axes = {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim] for each in model.graph.input}
    assert axes["input_ids"] == axes["attention_mask"] == axes["token_type_ids"]
    assert all(axes["input_ids"])
    assert [each.name for each in model.graph.output] == ["logits"]
    assert str(Path(__file__).parents[2]) not in (folder / "model.onnx").read_bytes().decode("latin-1")


def test_the_script_gives_our_predictions_alone(bound: Bound, folder: Path) -> None:
    texts = [*made.TEXTS, " ".join(made.TEXTS * 4)]  # the last one is cut
    found = predict(folder, *texts)
    for row, ours in zip(found, bound.predict(texts), strict=True):
        assert row["label"] == ours.label
        assert row["scores"] == pytest.approx(ours.scores, abs=CLOSE)
    assert predict(folder, stdin="\n".join(texts)) == found
    assert len((folder / "predict.py").read_text().splitlines()) <= 30


def test_the_scripts_import_nothing_else() -> None:
    import adaptree.hub

    scripts = sorted((Path(adaptree.hub.__file__).parent / "scripts").glob("[a-z]*.py"))
    assert len(scripts) == 6
    for path in scripts:
        tree = ast.parse(path.read_text())
        names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert names <= {"json", "sys", "pathlib", "numpy", "onnxruntime", "tokenizers"}, path.name


def test_the_card_and_the_labels(folder: Path) -> None:
    about = json.loads((folder / "labels.json").read_text())
    assert (about["kind"], about["labels"], about["max_length"]) == ("classify", made.LABELS, 24)
    assert about["unit"] == pytest.approx([1 / 1.7] * 3)
    assert 'python predict.py "a text"' in (folder / "README.md").read_text()


@SLOW
@pytest.mark.parametrize("kind", ["multilabel", "regress", "multioutput"])
def test_texts_of_other_kinds(kind: str, base: Base, tmp_path: Path) -> None:
    bound = base.bind(made.task(base, "lora:3", kind))
    assert to_onnx(bound, tmp_path / "model").difference < CLOSE
    for row, ours in zip(predict(tmp_path / "model", *made.TEXTS), bound.predict(made.TEXTS), strict=True):
        mine = ours.to_dict()
        if kind == "multilabel":
            assert row["labels"] == mine["labels"]
            row, mine = row["scores"], mine["scores"]
        assert row == pytest.approx(mine.get("values") or mine, abs=CLOSE)


@SLOW
def test_the_other_kinds(base: Base, tmp_path: Path) -> None:
    ways = {"tag": "bapna:5", "answer": "parallel_adapter:6", "choose": "pfeiffer:5",
            "mlm": "pfeiffer(size=5, invertible=true)"}  # fmt: skip
    bound = {kind: base.bind(made.task(base, way, kind)) for kind, way in ways.items()}
    for kind, each in bound.items():
        assert to_onnx(each, tmp_path / kind).difference < CLOSE
    for text, row in zip(made.TEXTS, predict(tmp_path / "tag", *made.TEXTS), strict=True):
        assert [each["word"] for each in row["words"]] == text.split()
        out = bound["tag"].run(bound["tag"].kind.inputs([text], bound["tag"].task.record))[1][0][1:-1]
        assert [each["tag"] for each in row["words"]] == [made.TAGS[i] for i in out.argmax(-1)]
        assert [each["score"] for each in row["words"]] == pytest.approx(
            out.softmax(-1).max(-1).values.numpy(), abs=CLOSE
        )
    for text in made.TEXTS:
        (row,) = predict(tmp_path / "answer", "apple or pear", text)
        (ours,) = bound["answer"].predict([("apple or pear", text)])
        assert (row["answer"], row["start"], row["end"]) == (ours.answer, ours.start, ours.end)
        for question in (text, f"{text} _"):
            choices = ["apple", "saw drill", "bear"]
            (row,) = predict(tmp_path / "choose", question, *choices)
            (choice,) = bound["choose"].predict([{"text": question, "choices": choices}])
            assert (row["choice"], row["number"]) == (choice.choice, choice.number)
            assert row["scores"] == pytest.approx(choice.scores, abs=CLOSE)
    ((fills,),) = predict(tmp_path / "mlm", "the [MASK] apple")
    (words,) = bound["mlm"].predict(["the [MASK] apple"])
    assert [each["word"] for each in fills] == [each["word"] for each in words.fills[0]]


@SLOW
@pytest.mark.parametrize(
    "expression", ["pal", "average_outputs(one, deep)", "stack(one, low)", "drop(own, layers='1')", "average(one, two)"]
)
def test_any_composition_becomes_a_graph(expression: str, base: Base, tmp_path: Path) -> None:
    ways = {"one": "pfeiffer:5", "two": "pfeiffer:5", "deep": "houlsby(size=6, norms=false)", "own": "houlsby:6",
            "low": "lora(rank=3, targets=down)", "pal": "pal(size=12, heads=3)"}  # fmt: skip
    tasks = {name: made.task(base, way, name=name, seed=i) for i, (name, way) in enumerate(ways.items())}
    assert to_onnx(base.bind(expression, tasks=tasks), tmp_path / "model").difference < CLOSE


@SLOW
@pytest.mark.parametrize("architecture", [name for name in tiny.CASES if name not in ("roformer", "t5-generator")])
def test_every_architecture_becomes_a_graph(architecture: str, tmp_path: Path) -> None:
    base = made.base(tmp_path / architecture, architecture)
    assert to_onnx(base.bind(made.task(base, "houlsby:6")), tmp_path / "model").difference < CLOSE


# int8


@pytest.fixture
def _written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same task's graph, which was written already."""
    monkeypatch.setattr(
        "adaptree.hub.to_onnx._write_graph", lambda bound, path: shutil.copyfile(folder / "model.onnx", path)
    )


@pytest.mark.usefixtures("_written")
def test_int8_is_measured(bound: Bound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptree.hub.to_onnx.SECONDS", 0.05)
    rows = [{"text": text, "label": label} for text, label in zip(made.TEXTS * 5, made.LABELS * 10, strict=False)]
    found = to_onnx(bound, tmp_path / "model", int8=True, data=rows)
    assert found.form == "one graph, int8"
    assert found.int8 is not None
    assert found.int8["compared"] == len(rows)
    assert found.int8["int8_bytes"] < found.int8["fp32_bytes"]
    assert found.int8["fp32"].keys() == found.int8["int8"].keys() >= {"accuracy"}
    lines = found.int8_lines()
    assert lines[0].startswith(f"int8 changes {found.int8['changed']} of 20 predictions")
    assert any(line.startswith("accuracy: ") for line in lines)
    assert "fp32.onnx" not in found.files
    assert len(predict(tmp_path / "model", "the old apple")) == 1


@pytest.mark.usefixtures("_written")
def test_int8_that_changes_too_much_is_refused(bound: Bound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(bound.kind), "changed", lambda *parts: 3)
    with pytest.raises(UsageError, match="int8 changes 3 of 4 predictions"):
        to_onnx(bound, tmp_path / "model", int8=True)
    assert list(tmp_path.iterdir()) == []


# refusals


def test_what_cannot_leave_is_refused(base: Base, bound: Bound, tmp_path: Path) -> None:
    task = made.task(base, "head")
    whole = Task(replace(task.record, extra={"windows": True}), task.tensors)
    with pytest.raises(UsageError, match="in windows"):
        to_onnx(base.bind(whole), tmp_path / "model")
    with pytest.raises(UsageError, match="gguf is for models that generate text"):
        api.export_model(bound, tmp_path / "model", to="gguf")


def test_without_the_packages_it_says_what_to_install(
    bound: Bound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match="onnxscript is not installed") as error:
        to_onnx(bound, tmp_path / "model")
    assert error.value.hint == "pip install 'adaptree[onnx]'"


@pytest.mark.real
@SLOW
def test_the_default_base_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = words_csv(tmp_path / "words.csv")
    store = Store(tmp_path / "store")
    bound = at.train(data, method="houlsby:16", name="words", epochs=2, baselines=False, store=store)
    words = ["export", "words", str(tmp_path / "model"), "--to", "onnx", "--store", str(store.path)]
    assert main([*words, "--int8", "--data", str(data), "--format", "json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["difference"] < CLOSE
    assert found["int8"]["int8_bytes"] < 0.7 * found["int8"]["fp32_bytes"]
    assert "int8 changes" in said.err
    texts = ["a hammer near the saw", "the lion and the old wolf"]
    for row, ours in zip(predict(tmp_path / "model", *texts), bound.predict(texts), strict=True):
        assert row["label"] == ours.label
