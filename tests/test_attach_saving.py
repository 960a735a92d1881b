"""What `attach` trained is saved alone, and read back into the model it belongs to, and no other."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers as tf
from torch import nn

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
from adaptree.tasks.record import Record
from adaptree.tasks.task import Task
from tests import tiny
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
    assert sorted(path.name for path in (tmp_path / "task").iterdir()) == ["README.md", "task.json", "task.safetensors"]


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


def test_a_task_that_train_made_is_refused_where_its_head_does_not_fit() -> None:
    tuned = attach(bert(), METHOD)
    weights = {name: tensor for name, tensor in tuned.weights().items() if not name.startswith("head.")}
    record = Record(name="reviews", kind="classify", method=METHOD, base=tuned.task.record.base)
    task = Task(record, {**weights, "head.weight": torch.zeros(3, 32), "head.bias": torch.zeros(3)})
    with pytest.raises(UsageError, match="'reviews' has other weights than this BertForSequenceClassification takes"):
        attach(bert(), task)


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
