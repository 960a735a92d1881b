"""`attach`: a task's weights in any Hugging Face model, which itself stays as it was."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import adaptree
from adaptree import attach
from adaptree.errors import (
    AdaptreeError,
)
from adaptree.tasks.task import Task
from tests import tiny
from tests.headed import CLASSIFIERS, KINDS, METHOD, Kind, batch, bert, equal, outputs, same, state, train


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_it_owns_just_the_task_and_a_copy_of_the_head(kind: Kind) -> None:
    model = kind.make()
    tuned = attach(model, METHOD)
    assert isinstance(tuned, nn.Module)
    own = dict(tuned.named_parameters())
    assert list(own) == list(tuned.state_dict())
    assert [*map(id, own.values())] == [*map(id, tuned.parameters())]
    assert {name for name in own if name.startswith("head.")} == {f"head.{name}" for name in kind.head.split()}
    theirs = dict(model.named_parameters())
    for name in kind.head.split():
        assert torch.equal(own[f"head.{name}"], theirs[name])
    assert not {p.data_ptr() for p in own.values()} & {p.data_ptr() for p in theirs.values()}
    count = tuned.count()
    assert (
        count["trained"] == sum(p.numel() for p in own.values()) == count["adapters"] + count["norms"] + count["head"]
    )
    assert all(p.requires_grad and p.is_leaf for p in own.values())


def test_the_frozen_weights_are_the_models_own_memory(kind: Kind) -> None:
    model = kind.make()
    tuned = attach(model, METHOD)
    # `get_parameter` is nn.Module's own; `base_model` is asked of the tree.
    trees = dict(tuned.base_model.named_parameters())
    theirs = dict(model.base_model.named_parameters())
    assert len(trees) >= 20
    for name, p in trees.items():
        assert p.data_ptr() == theirs[name].data_ptr(), name
        assert p is not theirs[name]
        assert not p.requires_grad
    for name, b in tuned.base_model.named_buffers():
        assert b.data_ptr() == dict(model.base_model.named_buffers())[name].data_ptr(), name


def test_training_changes_the_task_and_nothing_of_the_model(kind: Kind) -> None:
    model = kind.make()
    inputs = batch(model, kind.labels)
    bare = outputs(model, inputs)
    before = state(model)
    tuned = attach(model, METHOD)
    assert state(model) == before
    born = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    train(tuned, inputs)
    assert state(model) == before
    assert [name for name, tensor in tuned.state_dict().items() if torch.equal(tensor, born[name])] == []
    assert all(p.grad is None for p in tuned.base_model.parameters() if not p.requires_grad)
    assert not equal(outputs(tuned, inputs), bare)
    assert equal(outputs(model, inputs), bare)
    assert tuned.detach() is model
    assert state(model) == before


def test_a_model_in_use_keeps_its_flags_modes_and_hooks() -> None:
    model = bert()
    model.train()
    model.bert.encoder.layer[0].eval()
    model.bert.embeddings.requires_grad_(False)
    calls: list[str] = []
    model.bert.register_forward_hook(lambda *_: calls.append("theirs"))
    model(**batch(model)).loss.backward()
    before = state(model)
    tuned = attach(model, METHOD)
    train(tuned, batch(model))
    tuned.eval()
    tuned.detach()
    after = state(model)
    assert {name: value for name, value in after.items() if value != before[name]} == {}
    assert model.bert.pooler.dense.weight.grad is not None


def test_attaching_draws_nothing_from_the_global_generator() -> None:
    model = bert()
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    attach(model, METHOD)
    assert torch.equal(torch.rand(3), want)


def test_a_zero_task_is_the_model_to_the_bit(kind: Kind) -> None:
    model = kind.make()
    inputs = batch(model, kind.labels)
    assert equal(outputs(attach(model, "houlsby(size=4, init_std=0)"), inputs), outputs(model, inputs))


def problem(made: Any, rows: int = 48) -> dict[str, Tensor]:
    """The label is told by the second word, and nothing else."""
    inputs = tiny.batch(made, rows=rows, tokens=6, seed=1)
    return {**inputs, "labels": inputs["input_ids"][:, 0] % tiny.LABELS}


@pytest.mark.parametrize("method", ["houlsby(size=8)", "pfeiffer(size=8)"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_plain_loop_learns(name: str, method: str) -> None:
    tuned = attach(KINDS[name].make(), method)
    losses = train(tuned, problem(tuned), steps=120)
    assert min(losses[:3]) > 0.9
    assert sum(losses[-5:]) / 5 < 0.35 * losses[0]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    def run(born: int, trained: int) -> dict[str, Tensor]:
        tuned = attach(bert(), METHOD, seed=born)
        train(tuned, batch(tuned), steps=5, seed=trained)
        return dict(tuned.state_dict())

    first = run(0, 0)
    assert same(run(0, 0), first)
    assert not same(run(1, 0), first)
    assert not same(run(0, 1), first)  # the head's dropout


def test_seeds_choose_the_weights_at_birth() -> None:
    born = [attach(bert(), METHOD, seed=seed).state_dict() for seed in (4, 4, 5)]
    assert same(born[0], born[1])
    assert not torch.equal(born[0]["0.attention.down"], born[2]["0.attention.down"])


def test_dropout_of_the_base_is_off_unless_asked_for_and_the_heads_stays() -> None:
    def twice(dropout: bool, drop_head: bool) -> bool:
        model = bert()
        model.dropout.p = 0.5 if drop_head else 0.0
        tuned = attach(model, METHOD, dropout=dropout).train()
        inputs = batch(model)
        return torch.equal(tuned(**inputs).logits, tuned(**inputs).logits)

    assert twice(dropout=False, drop_head=False)
    assert not twice(dropout=True, drop_head=False)
    assert not twice(dropout=False, drop_head=True)


def test_after_detach_every_use_is_a_clear_error_but_the_weights_are_there() -> None:
    model = bert()
    tuned = attach(model, METHOD)
    assert tuned.detach() is model
    uses: list[Callable[[], Any]] = [
        tuned.detach,
        tuned.count,
        lambda: tuned.task,
        lambda: tuned(**batch(model)),
        lambda: tuned.save("nowhere"),
    ]
    for use in uses:
        with pytest.raises(AdaptreeError, match="was detached from its model"):
            use()
    assert tuned.weights().keys() == tuned.state_dict().keys()
    assert tuned.train().to(torch.float64).state_dict()["0.attention.down"].dtype == torch.float64
    assert len(copy.deepcopy(tuned).state_dict()) == len(tuned.state_dict())


def test_attach_detach_attach() -> None:
    model = bert()
    inputs = batch(model)
    tuned = attach(model, METHOD)
    train(tuned, inputs)
    want, task = outputs(tuned, inputs), tuned.task
    tuned.detach()
    again = attach(model, task)
    assert equal(outputs(again, inputs), want)
    assert equal(outputs(attach(again.detach(), METHOD), inputs), outputs(attach(bert(), METHOD), inputs))


def test_two_tasks_on_one_model_do_not_meet() -> None:
    model = bert()
    inputs = batch(model)
    alone = []
    for seed in (1, 2):
        tuned = attach(bert(), METHOD, seed=seed)
        train(tuned, inputs)
        alone.append(outputs(tuned, inputs))
    first, second = (attach(model, METHOD, seed=seed) for seed in (1, 2))
    train(first, inputs)
    train(second, inputs)
    assert equal(outputs(first, inputs), alone[0])
    assert equal(outputs(second, inputs), alone[1])
    first.detach()
    assert equal(outputs(second, inputs), alone[1])


def test_two_tasks_on_one_model_train_in_two_threads() -> None:
    model = tiny.model("bert", head=True)
    model.dropout.p = 0.0  # threads share the global generator
    inputs = batch(model)

    def run(seed: int, into: dict[int, dict[str, Tensor]]) -> None:
        tuned = attach(model, METHOD, seed=seed)
        tiny.checkpoint(tuned)
        optimiser = torch.optim.AdamW(tuned.parameters(), lr=1e-2)
        for _ in range(15):
            optimiser.zero_grad()
            tuned.train()(**inputs).loss.backward()
            optimiser.step()
        into[seed] = dict(tuned.state_dict())

    one_by_one: dict[int, dict[str, Tensor]] = {}
    at_once: dict[int, dict[str, Tensor]] = {}
    for seed in range(3):
        run(seed, one_by_one)
    threads = [threading.Thread(target=run, args=(seed, at_once)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(at_once[seed], one_by_one[seed]) for seed in range(3))


@pytest.fixture(scope="module")
def minilm() -> tuple[Any, Any]:
    from adaptree.models.embedded import locate

    folder = str(locate("minilm"))
    torch.manual_seed(0)
    model = tf.BertForSequenceClassification.from_pretrained(folder, num_labels=2, local_files_only=True)
    return model, tf.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.slow
@pytest.mark.real
def test_the_real_base_learns_and_stays_as_it_was(minilm: tuple[Any, Any], tmp_path: Path) -> None:
    from adaptree.models.fingerprint import fingerprint

    model, tokenizer = minilm
    good = ["I loved it", "what a joy", "a fine film", "great fun", "simply wonderful", "I would see it again"]
    bad = ["I hated it", "what a bore", "a poor film", "no fun", "simply awful", "I left before the end"]
    inputs = dict(tokenizer([*good, *bad], padding=True, return_tensors="pt"))
    inputs["labels"] = torch.tensor([1] * len(good) + [0] * len(bad))
    bare, before = outputs(model, inputs), state(model)
    tuned = attach(model, "houlsby:16")
    count = tuned.count()
    assert count["adapters"] == 12 * (2 * 16 * 384 + 384 + 16)
    assert count["norms"] == (2 * 6 + 1) * 2 * 384
    losses = train(tuned, inputs, steps=20, lr=2e-3)
    assert losses[-1] < 0.3 * losses[0]
    assert state(model) == before
    assert equal(outputs(model, inputs), bare)
    tuned.save(tmp_path / "task")
    assert (tmp_path / "task" / "task.safetensors").stat().st_size <= 1.05 * tuned.task.bytes + 4096
    record = Task.load(tmp_path / "task").record
    assert record.base["fingerprint"] == adaptree.load_base().fingerprint == fingerprint(model.bert)
    again = attach(model, tmp_path / "task")
    assert equal(outputs(again, inputs), outputs(tuned, inputs))
    assert tuned.detach() is model
    assert state(model) == before


@pytest.mark.real
def test_attaching_to_the_real_base_copies_none_of_it(minilm: tuple[Any, Any]) -> None:
    model, _ = minilm
    tuned = attach(model, "pfeiffer:16")
    theirs = {p.data_ptr() for p in model.parameters()}
    shared = sum(p.nbytes for p in tuned.base_model.parameters() if p.data_ptr() in theirs)
    assert shared > 0.99 * sum(p.nbytes for p in model.base_model.parameters())
