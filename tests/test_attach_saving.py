"""What `attach` trained is saved alone, and read back into the model it belongs to, and no other."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

import adaptree as at
from adaptree import attach
from adaptree.errors import (
    MethodError,
    StoreError,
    TaskCorrupt,
    TaskNotFound,
    UnknownArchitecture,
    UsageError,
    WrongBase,
)
from adaptree.tasks.task import Task
from tests import tiny
from tests.bases import tiny_base, words_csv
from tests.headed import KINDS, METHOD, Kind, batch, bert, equal, outputs, same, state, train


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_a_saved_task_is_read_back_to_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    model = kind.make()
    inputs = batch(model, kind.labels)
    tuned = attach(model, METHOD)
    train(tuned, inputs)
    tuned.save(tmp_path / "task")
    again = attach(kind.make(), tmp_path / "task", seed=9)
    assert same(dict(again.state_dict()), dict(tuned.state_dict()))
    assert equal(outputs(again, inputs), outputs(tuned, inputs))
    assert str(again.method) == str(tuned.method)
    assert equal(outputs(attach(kind.make(), tuned.task), inputs), outputs(tuned, inputs))


def test_a_saved_task_is_only_its_own_weights(kind: Kind, tmp_path: Path) -> None:
    tuned = attach(kind.make(), METHOD)
    tuned.save(tmp_path / "task")
    task = Task.load(tmp_path / "task")
    assert set(task.weights) == set(tuned.state_dict())
    assert task.bytes == sum(p.nbytes for p in tuned.parameters())
    header = 100 * len(task.weights)  # a line for each: much beside weights as tiny as these
    assert (tmp_path / "task" / "task.safetensors").stat().st_size <= task.bytes + header
    files = ["README.md", "SHA256SUMS", "task.json", "task.safetensors"]
    assert sorted(path.name for path in (tmp_path / "task").iterdir()) == files


def test_a_saved_task_is_never_overwritten(tmp_path: Path) -> None:
    tuned = attach(bert(), METHOD)
    tuned.save(tmp_path / "task")
    with pytest.raises(StoreError, match="there already"):
        tuned.save(tmp_path / "task")


def test_a_task_over_another_pooler_is_refused(tmp_path: Path) -> None:
    """The fingerprint leaves the pooler out: a base that was pretrained without one gets another at every loading."""
    model, other = bert(), bert()
    with torch.no_grad():
        other.bert.pooler.dense.weight.normal_()
    tuned = attach(model, METHOD)
    tuned.save(tmp_path / "task")
    with pytest.raises(WrongBase, match="another pooler"):
        attach(other, tmp_path / "task")
    attach(bert(), tmp_path / "task")


def test_a_task_is_a_snapshot() -> None:
    tuned = attach(bert(), METHOD)
    task = tuned.task
    before = {name: tensor.clone() for name, tensor in task.weights.items()}
    train(tuned, batch(tuned))
    assert same(task.weights, before)


def test_a_task_of_another_base_is_refused(tmp_path: Path) -> None:
    attach(bert(), METHOD).save(tmp_path / "task")
    other = bert()
    with torch.no_grad():
        other.bert.encoder.layer[1].output.dense.bias[3] += 1e-3
    for model in (other, tiny.model("roberta", head=True), tiny.model("gpt2", head=True)):
        with pytest.raises(WrongBase, match="trained on another base"):
            attach(model, tmp_path / "task")


def test_a_task_with_another_head_is_refused_in_one_line(tmp_path: Path) -> None:
    attach(bert(), METHOD).save(tmp_path / "task")
    config = tiny.bert()
    config.num_labels = 5
    more = tf.BertForSequenceClassification(config)
    more.bert.load_state_dict(bert().bert.state_dict())
    with pytest.raises(UsageError, match=r"'head.classifier.weight' is \(3, 32\) in the task, \(5, 32\) in the model"):
        attach(more, tmp_path / "task")
    without = KINDS["BertForQuestionAnswering"].make()
    without.bert.load_state_dict({k: v for k, v in bert().bert.state_dict().items() if not k.startswith("pooler")})
    with pytest.raises(UsageError, match=r"absent in the task") as error:
        attach(without, tmp_path / "task")
    assert "\n" not in str(error.value)
    assert "number of labels" in error.value.hint


def test_a_folder_may_be_a_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    tuned = attach(model, METHOD)
    train(tuned, batch(tuned))
    tuned.save(tmp_path / "task")
    monkeypatch.chdir(tmp_path)
    for folder in (str(tmp_path / "task"), "task", "./task"):
        assert same(attach(model, folder).weights(), tuned.weights())


def test_a_string_that_is_neither_a_method_nor_a_tasks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "./nothing", "some/where", "~/nowhere", str(tmp_path)):
        with pytest.raises(TaskNotFound, match="no task in folder") as error:
            attach(bert(), folder)
        assert "a method is spelled houlsby:64" in error.value.hint
        assert "\n" not in str(error.value)
    attach(bert(), METHOD).save("houlsby")
    with pytest.raises(UsageError, match=r"a method, and here also a folder.*\./houlsby"):
        attach(bert(), "houlsby")
    assert attach(bert(), "./houlsby").method == attach(bert(), METHOD).method


PROGRAM = """
import sys, torch, transformers
torch.set_num_threads(1)
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
exec(sys.stdin.read())
ids = torch.arange(3, 19).reshape(2, 8)
sys.stdout.buffer.write(tuned.eval()(input_ids=ids).logits.detach().numpy().tobytes())
"""


@pytest.mark.slow
def test_the_code_of_a_saved_card_gives_the_same_logits_in_another_process(tmp_path: Path) -> None:
    """As a user does it: a Hugging Face model, a loop of one's own, a folder, and what its README says."""
    bert().save_pretrained(tmp_path / "model")
    model = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tuned = attach(model, METHOD)
    train(tuned, batch(tuned))
    tuned.save(tmp_path / "task")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "task" / "README.md").read_text(), re.S)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model")]
    done = subprocess.run(command, cwd=tmp_path / "task", input=code.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    with torch.no_grad():
        logits = tuned.eval()(input_ids=torch.arange(3, 19).reshape(2, 8)).logits
    assert done.stdout == logits.numpy().tobytes()


def test_a_task_of_adaptree_train_gives_its_hidden_states_in_the_hugging_face_model(tmp_path: Path) -> None:
    base = at.load_base(tiny_base(tmp_path / "base"))
    data = words_csv(tmp_path / "words.csv")
    how: dict[str, Any] = {"base": base, "epochs": 1, "baselines": False, "store": tmp_path / "store"}
    bound = at.train(data, method=METHOD, name="words", **how)
    model = tf.AutoModel.from_pretrained(tmp_path / "base").eval()
    tuned = attach(model, at.Store(tmp_path / "store")["words"])
    inputs = {"input_ids": torch.arange(5, 21).reshape(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    assert bound.on_base is not None
    with torch.inference_mode(), base.hooked.running(bound.on_base[0]):
        expected = base.hooked.backbone(**inputs).last_hidden_state
    with torch.inference_mode():
        assert torch.equal(tuned(**inputs).last_hidden_state, expected)
        assert not torch.equal(model(**inputs).last_hidden_state, expected)
    headed = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base").eval()
    with pytest.raises(UsageError, match="'words' has a head of its own, which does not fit that of a Bert") as error:
        attach(headed, bound.task)
    assert "AutoModel" in error.value.hint
    assert "bind(task)" in error.value.hint
    above = at.train(data, method="lora:2", on="words", name="above", **how)
    with pytest.raises(UsageError, match=r"'above' was trained on words@1, which attach does not put below it"):
        attach(model, above.task)
    bag = at.train(data, method="tfidf", name="bag", **how)
    with pytest.raises(UsageError, match="tfidf does not run in a model"):
        attach(model, bag.task)


def test_bad_input_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFound, match="no such folder"):
        attach(bert(), tmp_path / "nothing")
    attach(bert(), METHOD).save(tmp_path / "task")
    (tmp_path / "task" / "task.safetensors").write_bytes(b"short")
    with pytest.raises(TaskCorrupt, match=r"task\.safetensors"):
        attach(bert(), tmp_path / "task")
    with pytest.raises(MethodError, match="Did you mean 'houlsby'"):
        attach(bert(), "houlsbi")
    with pytest.raises(UsageError, match="no such layers"):
        attach(bert(), "houlsby(layers=2-7)")
    with pytest.raises(UsageError, match="has a task attached already"):
        attach(attach(bert(), METHOD), METHOD)
    with pytest.raises(UnknownArchitecture, match="a Linear is not a Hugging Face model"):
        attach(nn.Linear(3, 3), METHOD)


def test_a_failed_attach_leaves_the_model_as_it_was() -> None:
    model = bert()
    before = state(model)
    with pytest.raises(UsageError):
        attach(model, "houlsby(layers=2-7)")
    wrong = tiny.CASES["roformer"].row
    assert wrong is not None
    with pytest.raises(UnknownArchitecture):
        attach(tiny.model("gpt2", head=True), METHOD, architecture=wrong)
    assert state(model) == before


def test_an_architecture_that_is_not_in_the_table_is_passed_as_an_object(tmp_path: Path) -> None:
    model = tiny.model("roformer", head=True)
    with pytest.raises(UnknownArchitecture, match=r"attention\.output\.dropout") as error:
        attach(model, METHOD)
    assert "Architecture(stacks=(LayerStack(layers='encoder.layer'" in str(error.value)
    row = tiny.CASES["roformer"].row
    tuned = attach(model, METHOD, architecture=row)
    train(tuned, batch(model))
    tuned.save(tmp_path / "task")
    again = attach(tiny.model("roformer", head=True), tmp_path / "task", architecture=row)
    assert equal(outputs(again, batch(model)), outputs(tuned, batch(model)))
    assert equal(outputs(copy.deepcopy(tuned), batch(model)), outputs(tuned, batch(model)))


DAMAGED: dict[str, tuple[str, Any, str]] = {
    "a weight of another shape": ("houlsby(size=3)", lambda v: {**v, "0.attention.down": torch.zeros(2, 2)}, "must be"),
    "a weight less": ("houlsby(size=3)", lambda v: {k: t for k, t in v.items() if k != "0.attention.up"}, "lacks"),
    "whole numbers": ("houlsby(size=3)", lambda v: {**v, "0.attention.up": v["0.attention.up"].int()}, "of type int32"),
    "a weight more": ("houlsby(size=3)", lambda v: {**v, "x": torch.zeros(2)}, "has a weight 'x'"),
    "positions without values": ("rand_sft(density=0.05)", lambda v: {**v, "sparse.values": torch.zeros(1)}, "values"),
    "no positions": ("rand_sft(density=0.05)", lambda v: {"sparse.values": v["sparse.values"]}, "lacks"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_task_that_does_not_fit_is_not_attached(damage: str) -> None:
    method, harm, why = DAMAGED[damage]
    model = tiny.model("bert")
    task = attach(model, method).task
    with pytest.raises(TaskCorrupt, match=why):
        attach(model, Task(task.record, harm(task.tensors)))


def test_a_task_of_a_huge_size_is_not_attached() -> None:
    model = tiny.model("bert")
    task = attach(model, "houlsby(size=3)").task
    with pytest.raises(TaskCorrupt, match="takes"):
        attach(model, Task(replace(task.record, method="houlsby(size=1000000000000)"), task.tensors))


def test_a_task_in_half_precision_is_attached() -> None:
    model = tiny.model("bert")
    task = attach(model, "houlsby(size=3)").task
    attach(model, Task(task.record, {name: tensor.bfloat16() for name, tensor in task.tensors.items()}))
