from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree import api
from adaptree.cli import main
from adaptree.errors import AdaptreeError, StoreError, UsageError
from adaptree.hub.exporting import ExportedModel, difference, probes
from adaptree.hub.to_transformers import MERGED, MODELLED, to_transformers
from adaptree.models.base import Base
from adaptree.models.bound import Bound
from adaptree.models.opening import open_task
from adaptree.tasks.record import FUSES
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import tiny_base, words_csv
from tests.hub import made

CLOSE = 1e-5
ADAPTERS = [
    "houlsby:6", "houlsby_norm:6", "houlsby_deep(size=6, depth=3)", "houlsby_attention:6", "houlsby_feedforward:6",
    "pfeiffer:5", "pfeiffer(size=5, norms=true)", "pfeiffer(size=5, invertible=true)", "bapna:5", "parallel_adapter:6",
    "scaled_parallel:6", "houlsby_parallel:6", "houlsby_multiplicative:6",
]  # fmt: skip
LINEAR = ["lora(rank=3, targets=all)", "ia3", "bitfit", "norms", "head", "top:1", "full"]
SPARSE = ["lt_sft:0.05", "diff_pruning:0.05", "rand_sft:0.05"]
KINDS = ["classify", "multilabel", "regress", "multioutput", "tag", "answer", "choose", "mlm"]
ENCODERS = [name for name in tiny.CASES if name not in ("bert", "roformer", "t5-encoder", "t5-generator")]
OWN_HEAD = ("modernbert", "bart")
"""Where the library's token classifier is more than a linear map, or there is none."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return made.base(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def sparse_task(base: Base, method: str) -> Task:
    """A finished task of a method that trains twice."""
    from adaptree.methods import parse

    task = made.task(base, "head")
    way, sites, frozen = parse(method), base.hooked.sites, base.hooked.frozen
    generator = torch.Generator().manual_seed(0)
    v = first = way.init(sites, base.hooked.backbone, generator)
    for _ in range(way.stages - 1):
        v = {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in v.items()}
        v = way.advance(sites, frozen, v, first)
    v = {name: t + 0.3 if t.is_floating_point() else t for name, t in v.items()}
    return Task(replace(task.record, method=str(way)), {**v, **task.tensors})


def check(bound: Bound, folder: Path, form: str) -> ExportedModel:
    found = to_transformers(bound, folder)
    assert (found.form, found.compared) == (form, len(made.TEXTS))
    assert found.difference < CLOSE
    assert (folder / "modeling_adaptree.py").exists() == (form == MODELLED)
    return found


# laws


@pytest.mark.parametrize("method", ADAPTERS + LINEAR)
def test_every_method_gives_the_same_logits(method: str, base: Base, folder: Path) -> None:
    check(base.bind(made.task(base, method)), folder, MODELLED)


@pytest.mark.parametrize("method", SPARSE)
def test_sparse_changes_are_merged(method: str, base: Base, folder: Path) -> None:
    check(base.bind(sparse_task(base, method)), folder, MODELLED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["pfeiffer(size=5, invertible=true)", "lora:3"])
def test_every_kind_gives_the_same_logits(method: str, kind: str, base: Base, folder: Path) -> None:
    stock = kind in ("tag", "answer") and method == "lora:3"
    check(base.bind(made.task(base, method, kind)), folder, MERGED if stock else MODELLED)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ENCODERS)
def test_every_architecture_gives_the_same_logits(architecture: str, tmp_path: Path) -> None:
    base = made.base(tmp_path / architecture, architecture)
    methods = ["pfeiffer:5", "houlsby:6", "bapna:5", "parallel_adapter:6", "lora(rank=3, targets=all)", "full"]
    for number, method in enumerate(methods + ["ia3"] * (architecture != "deberta")):
        check(base.bind(made.task(base, method)), tmp_path / str(number), MODELLED)
    form = MODELLED if architecture in OWN_HEAD else MERGED
    check(base.bind(made.task(base, "lora:3", "tag")), tmp_path / "tag", form)


def test_a_comparison_that_fails_is_found(base: Base) -> None:
    bound = base.bind(made.task(base, "houlsby:6"))
    examples = bound.read(probes(bound))
    ours = bound.compute(examples)
    assert difference(bound, examples, ours, list(ours + 0.5), scaled=False)[0] == pytest.approx(0.5)


# compositions


@pytest.fixture
def tasks(base: Base) -> dict[str, Task]:
    ways = {
        "one": "pfeiffer:5", "two": "pfeiffer:5", "deep": "houlsby(size=6, norms=false)", "own": "houlsby:6",
        "low": "lora(rank=3, targets=down)", "scales": "ia3", "norms": "norms", "pal": "pal(size=12, heads=3)",
    }  # fmt: skip
    return {name: made.task(base, way, name=name, seed=i) for i, (name, way) in enumerate(ways.items())}


@pytest.mark.parametrize(
    "expression",
    [
        "stack(one, two)", "stack(one, deep)", "stack(norms, one)", "stack(one, norms)", "stack(one, own)",
        "stack(low, scales)", "stack(scales, low)", "stack(low, one)", "average(one, two)", "drop(own, layers='1')",
        "drop(own, layers='0,1', keep_norms=true)", "drop(stack(one, low), layers='2')",
        "stack(one, drop(two, layers='0'))",
    ],
)  # fmt: skip
def test_compositions_give_the_same_logits(expression: str, base: Base, tasks: dict[str, Task], folder: Path) -> None:
    check(base.bind(expression, tasks=tasks), folder, MODELLED)


def test_a_fused_task_brings_its_parts(base: Base, tasks: dict[str, Task], folder: Path) -> None:
    parts = {name: tasks[name] for name in ("one", "two")}
    way = at.methods.parse("fusion").over([(at.methods.parse(p.record.method), p.weights) for p in parts.values()])
    generator = torch.Generator().manual_seed(0)
    v = way.init(base.hooked.sites, base.hooked.backbone, generator)
    v = {name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for name, tensor in v.items()}
    head = made.task(base, "head")
    record = replace(head.record, method="fusion", extra={**head.record.extra, FUSES: "fuse(one, two)"})
    check(base.bind(Task(record, {**v, **head.tensors}, parts)), folder, MODELLED)


# refusals


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("pal", "pal is neither a change of the base's weights nor a bottleneck"),
        ("average_outputs(one, deep)", "average_outputs is neither"),
    ],
)
def test_what_transformers_has_no_place_for_is_refused(
    expression: str, said: str, base: Base, tasks: dict[str, Task], folder: Path
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        to_transformers(base.bind(expression, tasks=tasks), folder)
    assert "--to onnx" in error.value.hint
    assert not folder.exists()


def test_lora_above_an_adapter_of_the_same_map_is_refused(tmp_path: Path) -> None:
    base = made.base(tmp_path / "llama", "llama")
    tasks = {"a": made.task(base, "houlsby(size=6, norms=false)"), "b": made.task(base, "lora(rank=3, targets=down)")}
    with pytest.raises(UsageError, match="after an adapter of a lower task"):
        to_transformers(base.bind("stack(a, b)", tasks=tasks), tmp_path / "model")
    check(base.bind("stack(b, a)", tasks=tasks), tmp_path / "model", MODELLED)


def test_windows_and_methods_outside_the_base_are_refused(base: Base, folder: Path) -> None:
    task = made.task(base, "head")
    whole = Task(replace(task.record, extra={"windows": True}), task.tensors)
    with pytest.raises(UsageError, match="reads long texts in windows"):
        to_transformers(base.bind(whole), folder)
    bag = at.train(
        [{"text": text, "label": label} for text, label in zip(made.TEXTS * 5, ["a", "b"] * 10, strict=True)],
        base=base, method="tfidf", baselines=False,
    )  # fmt: skip
    with pytest.raises(UsageError, match="does not run in a Transformer"):
        to_transformers(bag, folder)
    full = base.bind(made.task(base, "full", "mlm"))
    with pytest.raises(UsageError, match="replaces the base's embeddings"):
        to_transformers(full, folder)


def test_a_folder_that_is_there_stays(base: Base, folder: Path) -> None:
    folder.mkdir()
    bound = base.bind(made.task(base, "head"))
    to_transformers(bound, folder)  # an empty one is taken
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StoreError, match="is there already"):
        to_transformers(bound, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_nothing_is_left_when_the_logits_differ(base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptree.hub.exporting.TOLERANCE", -1.0)
    with pytest.raises(AdaptreeError, match="gives other logits there than here"):
        to_transformers(base.bind(made.task(base, "head")), folder)
    assert list(folder.parent.iterdir()) == []


# without adaptree

BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("adaptree", "tests"):
            raise ModuleNotFoundError(f"no {name} here")
sys.meta_path.insert(0, Absent())
import json, warnings
"""


def alone(code: str, *arguments: object, home: Path) -> Any:
    """What a script prints as JSON, in a process that cannot import adaptree."""
    kept = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, cwd=home,
        env={**kept, "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not supported" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CLASSIFIERS = """
from transformers import pipeline
texts = json.loads(sys.argv[1])
found = {}
for folder in sys.argv[2:]:
    ask = pipeline("text-classification", model=folder, trust_remote_code=True, truncation=True)
    found[folder] = [{each["label"]: each["score"] for each in row} for row in ask(texts, top_k=None)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_pipeline_gives_our_scores_without_adaptree(base: Base, tmp_path: Path) -> None:
    texts = [*made.TEXTS, " ".join(made.TEXTS * 4)]  # the last one is cut
    expected = {}
    for kind, method in (("classify", "houlsby:6"), ("multilabel", "pfeiffer:5"), ("regress", "lora:3"),
                         ("multioutput", "parallel_adapter:6")):  # fmt: skip
        bound = base.bind(made.task(base, method, kind))
        to_transformers(bound, tmp_path / kind)
        rows = [prediction.to_dict() for prediction in bound.predict(texts)]
        assert bound.truncated == 1
        expected[str(tmp_path / kind)] = [row.get("scores") or row.get("values") or row for row in rows]
    found = alone(CLASSIFIERS, json.dumps(texts), *expected, home=tmp_path)
    for folder, rows in expected.items():
        for row, other in zip(rows, found[folder], strict=True):
            assert other == pytest.approx(row, abs=CLOSE)


OTHERS = """
import torch
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering, AutoTokenizer, pipeline
texts, tag, answer, choose, words = json.loads(sys.argv[1]), *sys.argv[2:]
ask = pipeline("token-classification", model=tag)
tags = [[[each["word"], each["entity"], float(each["score"])] for each in row] for row in ask(texts)]
tokenizer, model = AutoTokenizer.from_pretrained(answer), AutoModelForQuestionAnswering.from_pretrained(answer)
row = tokenizer("apple or pear", texts[1], return_tensors="pt")
with torch.inference_mode():
    out = model(**row)
spans = [out.start_logits[0].tolist(), out.end_logits[0].tolist()]
tokenizer = AutoTokenizer.from_pretrained(choose, trust_remote_code=True)
model = AutoModelForMultipleChoice.from_pretrained(choose, trust_remote_code=True)
choices = ["apple", "saw drill", "bear"]
rows = tokenizer([texts[1]] * 3, choices, padding=True, return_tensors="pt")
with torch.inference_mode():
    scores = model(**{name: x[None] for name, x in rows.items()}).logits[0].softmax(-1).tolist()
fill = pipeline("fill-mask", model=words, trust_remote_code=True)
fills = [[each["token_str"], each["score"]] for each in fill("the [MASK] apple")]
print(json.dumps([tags, spans, scores, fills]))
"""


@pytest.mark.slow
def test_the_other_kinds_run_without_adaptree(base: Base, tmp_path: Path) -> None:
    ways = {"tag": "lora:3", "answer": "ia3", "choose": "bapna:5", "mlm": "pfeiffer(size=5, invertible=true)"}
    bound = {kind: base.bind(made.task(base, way, kind)) for kind, way in ways.items()}
    for kind, each in bound.items():
        to_transformers(each, tmp_path / kind)
    folders = [tmp_path / kind for kind in ways]
    tags, spans, scores, fills = alone(OTHERS, json.dumps(made.TEXTS), *folders, home=tmp_path)
    for text, found in zip(made.TEXTS, tags, strict=True):
        given = bound["tag"].kind.inputs([text], bound["tag"].task.record)
        examples = bound["tag"].read(given)
        p = bound["tag"].compute(examples)[0].softmax(-1)[1:-1]  # one token a word here, between two special ones
        ours = [[word, made.TAGS[row.argmax()], float(row.max())] for word, row in zip(text.split(), p, strict=True)]
        ours = [each for each in ours if each[1] != "O"]
        assert [each[:2] for each in found] == [each[:2] for each in ours]
        assert [each[2] for each in found] == pytest.approx([each[2] for each in ours], abs=CLOSE)
    asked = [{"question": "apple or pear", "context": made.TEXTS[1]}]
    rows = bound["answer"].compute(
        bound["answer"].read(bound["answer"].kind.inputs(asked, bound["answer"].task.record))
    )
    assert torch.tensor(spans).T.numpy() == pytest.approx(rows[0].numpy(), abs=CLOSE)
    (choice,) = bound["choose"].predict([{"text": made.TEXTS[1], "choices": ["apple", "saw drill", "bear"]}])
    assert scores == pytest.approx(choice.scores, abs=CLOSE)
    (blank,) = bound["mlm"].predict(["the [MASK] apple"])
    assert [word for word, _ in fills] == [each["word"] for each in blank.fills[0]]
    assert [score for _, score in fills] == pytest.approx([each["score"] for each in blank.fills[0]], abs=CLOSE)


@pytest.mark.slow
def test_without_trust_the_model_is_refused_and_not_another_one_loaded(base: Base, tmp_path: Path) -> None:
    to_transformers(base.bind(made.task(base, "houlsby:6")), tmp_path / "model")
    code = """
from transformers import pipeline
try:
    pipeline("text-classification", model=sys.argv[1], trust_remote_code=False)
except ValueError as error:
    print(json.dumps(str(error)))
"""
    assert "trust_remote_code" in alone(code, tmp_path / "model", home=tmp_path)


# the folder, the command


def test_the_folder_says_what_it_is(base: Base, folder: Path) -> None:
    bound = base.bind(made.task(base, "houlsby:6"))
    found = to_transformers(bound, folder)
    assert found.files == ["README.md", "config.json", "model.safetensors", "modeling_adaptree.py", "tokenizer.json",
                           "tokenizer_config.json"]  # fmt: skip
    assert found.bytes == sum(path.stat().st_size for path in folder.iterdir())
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "fruit", "1": "tool", "2": "beast"}
    assert config["problem_type"] == "single_label_classification"
    assert config["base"]["model_type"] == "bert"
    assert str(base.location) not in (folder / "config.json").read_text(), "a path of this machine"
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 24
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-classification\n")
    assert 'pipeline("text-classification", model=".", trust_remote_code=True, truncation=True)' in card
    assert "adaptree" not in re.sub(r'""".*?"""', "", (folder / "modeling_adaptree.py").read_text(), flags=re.DOTALL
                                    ).replace('"adaptree"', "")  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    where = tmp_path_factory.mktemp("trained")
    base = at.load_base(tiny_base(where / "base"))
    store = Store(where / "store")
    at.train(words_csv(where / "words.csv"), base=base, method="houlsby:4", name="words", epochs=1, store=store,
             baselines=False)  # fmt: skip
    return store


def test_the_command(store: Store, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "words", str(folder), "--store", str(store.path)]
    assert main([*words, "--to", "transformers"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{folder}: transformers, with its own modelling file")
    assert "at most from adaptree's, on" in said.err
    assert main([*words, "--to", "gguf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*words, "--to", "transformers", "--int8"]) == 2
    assert "--int8 is for --to onnx" in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot be exported to 'tea'"):
        api.export_model(open_task(store, "words"), folder, to="tea")


@pytest.mark.slow
@pytest.mark.real
def test_the_default_base_end_to_end(tmp_path: Path) -> None:
    bound = at.train(words_csv(tmp_path / "words.csv"), method="houlsby:16", epochs=1, baselines=False)
    found = to_transformers(bound, tmp_path / "model")
    assert found.difference < CLOSE
    texts = ["a hammer near the saw", "the lion and the old wolf"]
    (rows,) = alone(CLASSIFIERS, json.dumps(texts), tmp_path / "model", home=tmp_path).values()
    for row, ours in zip(rows, bound.predict(texts), strict=True):
        assert row == pytest.approx(ours.scores, abs=CLOSE)
