"""What `attach` gives is an nn.Module like any other: it is moved, copied, loaded, and generates."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from adaptree import Tuned, attach
from adaptree.errors import (
    AdaptreeError,
)
from tests import tiny
from tests.headed import KINDS, METHOD, Kind, batch, bert, equal, outputs, state, train


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_it_moves_as_a_whole_and_the_model_stays(kind: Kind) -> None:
    model = kind.make()
    inputs = batch(model, kind.labels)
    before = state(model)
    tuned = attach(model, METHOD)
    single = outputs(tuned, inputs)
    tuned.to(torch.float64)
    assert {p.dtype for p in tuned.parameters()} == {p.dtype for p in tuned.base_model.parameters()} == {torch.float64}
    double = outputs(tuned, inputs)
    assert double[1].dtype == torch.float64  # the logits; a loss may be computed in another type
    assert max((a - b).abs().max().item() for a, b in zip(single, double, strict=True)) < 1e-3
    train(tuned, inputs)
    assert not equal(outputs(tuned, inputs), double)
    assert state(model) == before


def test_a_task_of_a_moved_tree_goes_back_to_its_base(tmp_path: Path) -> None:
    tuned = attach(bert(), METHOD).to(torch.float64)
    tuned.save(tmp_path / "task")
    again = attach(bert(), tmp_path / "task")
    assert {p.dtype for p in again.parameters()} == {torch.float32}


def test_a_move_to_the_same_place_keeps_the_memory_shared() -> None:
    model = bert()
    tuned = attach(model, METHOD).to("cpu").float()
    word = model.bert.embeddings.word_embeddings.weight
    assert tuned.base_model.embeddings.word_embeddings.weight.data_ptr() == word.data_ptr()


def test_the_meta_device_replaces_parameters_and_they_are_still_run() -> None:
    model = bert()
    before = state(model)
    tuned = attach(model, METHOD)
    tuned.to("meta")
    assert tuned.device.type == "meta"
    given = tuned(input_ids=batch(model)["input_ids"].to("meta"))
    assert given.logits.device.type == "meta"
    assert given.logits.shape == (5, 3)
    assert state(model) == before


def test_modes_reach_the_tree_and_not_the_model() -> None:
    model = bert()
    tuned = attach(model, METHOD)
    assert not tuned.training
    tuned.train()
    assert tuned.training
    assert all(part.training for part in tuned.base_model.modules())
    assert not any(part.training for part in model.modules())
    model.train()
    tuned.eval()
    assert not any(part.training for part in tuned.base_model.modules())
    assert all(part.training for part in model.modules())
    assert attach(model, METHOD).training


def test_a_deep_copy_is_a_task_of_its_own_over_the_same_base(kind: Kind) -> None:
    model = kind.make()
    inputs = batch(model, kind.labels)
    before = state(model)
    tuned = attach(model, METHOD).train()
    if model.supports_gradient_checkpointing:
        tiny.checkpoint(tuned)
    twin = copy.deepcopy(tuned)
    want = outputs(tuned, inputs)
    assert isinstance(twin, Tuned)
    assert type(twin) is type(tuned)
    assert twin.training
    assert equal(outputs(twin, inputs), want)
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in tuned.parameters()}
    frozen = [p for p in tuned.base_model.parameters() if not p.requires_grad]
    assert {p.data_ptr() for p in frozen} <= {p.data_ptr() for p in twin.base_model.parameters()}
    train(twin, inputs)
    assert [name for name, p in twin.named_parameters() if torch.equal(p, tuned.get_parameter(name))] == []
    assert all(p.grad is None for p in tuned.parameters())
    assert equal(outputs(tuned, inputs), want)
    assert not equal(outputs(twin, inputs), want)
    tuned.detach()
    assert not equal(outputs(twin, inputs), want)
    assert twin.detach() is model
    assert state(model) == before


def test_the_mean_of_weights_over_training_is_taken_by_torchs_own_class() -> None:
    tuned = attach(bert(), METHOD)
    mean = torch.optim.swa_utils.AveragedModel(tuned)
    start = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    mean.update_parameters(tuned)
    train(tuned, batch(tuned))
    mean.update_parameters(tuned)
    name = "0.attention.down"
    halfway = (start[name] + tuned.state_dict()[name]) / 2
    torch.testing.assert_close(mean.module.state_dict()[name], halfway)
    assert not equal(outputs(mean.module, batch(tuned)), outputs(tuned, batch(tuned)))


def test_pickling_and_save_pretrained_say_what_to_do(tmp_path: Path) -> None:
    tuned = attach(bert(), METHOD)
    uses: list[Callable[[], Any]] = [
        lambda: pickle.dumps(tuned),
        lambda: torch.save(tuned, tmp_path / "tuned.pt"),
        lambda: copy.copy(tuned),
        lambda: tuned.save_pretrained(tmp_path / "model"),
        lambda: tuned.push_to_hub("me/model"),
    ]
    for use in uses:
        with pytest.raises(AdaptreeError, match="would write the") as error:
            use()
        assert "tuned.save(folder)" in error.value.hint
    assert not (tmp_path / "model").exists()
    with pytest.raises(AdaptreeError, match=r"nn\.DataParallel"):
        tuned._replicate_for_data_parallel()


def test_a_state_dict_is_saved_and_loaded(tmp_path: Path) -> None:
    tuned = attach(bert(), METHOD)
    train(tuned, batch(tuned))
    torch.save(tuned.state_dict(), tmp_path / "v.pt")
    for assign in (False, True):  # `assign` puts other parameters in the place of ours: the tree must run those
        again = attach(bert(), METHOD, seed=7)
        again.load_state_dict(torch.load(tmp_path / "v.pt", weights_only=True), assign=assign)
        assert equal(outputs(again, batch(tuned)), outputs(tuned, batch(tuned)))
        train(again, batch(tuned))
        assert not equal(outputs(again, batch(tuned)), outputs(tuned, batch(tuned)))


def test_functional_call_runs_the_weights_it_is_given() -> None:
    tuned = attach(bert(), METHOD)
    inputs = batch(tuned)
    other = attach(bert(), METHOD, seed=8)
    train(other, inputs)
    want = outputs(tuned, inputs)
    with torch.no_grad():
        given = torch.func.functional_call(tuned, dict(other.state_dict()), kwargs=inputs)
        assert torch.equal(given.logits, other.eval()(**inputs).logits)
    assert equal(outputs(tuned, inputs), want)


def test_what_the_tree_knows_is_asked_of_it() -> None:
    model = bert()
    tuned = attach(model, METHOD)
    assert tuned.config.num_labels == tiny.LABELS
    assert tuned.config is not model.config
    assert tuned.device == torch.device("cpu")
    assert tuned.dtype == torch.float32
    assert tuned.num_labels == tiny.LABELS
    assert not hasattr(tuned, "no_such_thing")
    v = sum(p.numel() for name, p in tuned.named_parameters() if not name.startswith("head."))
    assert tuned.num_parameters() == model.num_parameters() + v
    assert tuned.num_parameters(only_trainable=True) == sum(p.numel() for p in tuned.parameters())


def test_a_setting_is_set_where_it_is_read() -> None:
    model = tiny.roughen(tf.LlamaForCausalLM(tiny.llama()))
    tuned = attach(model, METHOD)
    before = state(model)
    tuned.generation_config = tf.GenerationConfig(max_new_tokens=2, pad_token_id=tiny.PAD)
    tuned.note = "mine"
    ids = tiny.batch(model)["input_ids"][:1]
    assert tuned.generate(ids).shape[1] <= ids.shape[1] + 2
    assert tuned.note == "mine"
    assert state(model) == before


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "LlamaForCausalLM"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_runs_with_the_task_in_place(name: str, beams: int) -> None:
    model = KINDS[name].make()
    inputs = tiny.batch(model, rows=3)
    if name == "LlamaForCausalLM":
        inputs = {key: tensor.flip(1) for key, tensor in inputs.items()}  # padded on the left, as decoders want it
    options = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False}
    bare = model.generate(**inputs, **options)
    tuned = attach(model, METHOD)
    zero = attach(model, "houlsby(size=4, init_std=0)")
    assert torch.equal(zero.generate(**inputs, **options), bare)
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    adapted = tuned.generate(**inputs, **options)
    assert adapted.shape != bare.shape or not torch.equal(adapted, bare)
    assert torch.equal(tuned.generate(**inputs, **options, use_cache=False), adapted)
    assert torch.equal(model.generate(**inputs, **options), bare)


@pytest.mark.parametrize("name", ["bert", "t5", "llama", "modernbert"])
def test_a_base_in_half_precision_has_a_task_in_half_precision(name: str) -> None:
    model = tiny.model(name, head=True).to(torch.bfloat16)
    tuned = attach(model, METHOD)
    assert {p.dtype for p in tuned.parameters()} == {torch.bfloat16}
    inputs = tiny.batch(model)
    logits = tiny.output(tuned, inputs)
    assert logits.dtype == torch.bfloat16
    assert not torch.equal(logits, tiny.output(model, inputs))
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in tuned.parameters())
    assert torch.equal(tiny.output(attach(model, tuned.task), inputs), tiny.output(tuned, inputs))
