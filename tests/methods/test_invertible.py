"""pfeiffer(invertible=true): the embeddings are coupled on their way into the first layer, on every architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor
from torch.nn import functional as F

from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.models.sites import find
from tests import tiny

METHOD = "pfeiffer(size=5, invertible=true)"
REFUSED = {
    "albert": "runs again higher up",
    "deberta-v2": "a convolution .* reads the embeddings",
    "t5": "decoder of t5 has embeddings of its own",
    "t5-generator": "decoder of t5 has embeddings of its own",
    "bart": "decoder of bart has embeddings of its own",
}
CASES = [case for case in tiny.CASES if case not in REFUSED]


def coupled(e: Tensor, p: dict[str, Tensor]) -> Tensor:
    """MAD-X, §4.1.3."""

    def bottleneck(name: str, x: Tensor) -> Tensor:
        inner = F.relu(x @ p[f"invertible.{name}.down"] + p[f"invertible.{name}.down_bias"])
        return inner @ p[f"invertible.{name}.up"] + p[f"invertible.{name}.up_bias"]

    half = e.shape[-1] // 2
    o1 = bottleneck("f", e[..., half:]) + e[..., :half]
    return torch.cat([o1, bottleneck("g", o1) + e[..., half:]], -1)


@pytest.mark.parametrize("case", CASES)
def test_the_first_layer_gets_the_coupled_embeddings(case: str) -> None:
    model: Any = tiny.model(case)
    tuned = attach(model, parse(METHOD, init_std=0.0), architecture=tiny.CASES[case].row)
    inputs = tiny.batch(model)
    with torch.no_grad():
        assert torch.equal(tiny.output(tuned, inputs), tiny.output(model, inputs)), "zeros change nothing"
        generator = torch.Generator().manual_seed(1)
        for name, p in tuned.named_parameters():
            if name.startswith("invertible."):
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        found = tiny.output(tuned, inputs)
        p = {name: t.detach() for name, t in tuned.named_parameters()}
        first = model.base_model.get_submodule(find(model, tiny.CASES[case].row).layers[0])
        handle = first.register_forward_pre_hook(lambda _, args: (coupled(args[0], p), *args[1:]))
        expected = tiny.output(model, inputs)
        handle.remove()
        assert float((tiny.output(model, inputs) - expected).abs().max()) > 1e-2, "a coupling that changes nothing"
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6


@pytest.mark.parametrize("case", REFUSED)
def test_where_the_first_layer_s_input_is_not_the_embeddings_it_is_refused(case: str) -> None:
    with pytest.raises(MethodError, match=rf"invertible has no place here: .*{REFUSED[case]}.*Leave invertible out"):
        attach(tiny.model(case), METHOD)


def test_hidden_states_that_come_by_name_are_coupled_too() -> None:
    method, sites = parse(METHOD), find(tiny.model("bert"))
    v = method.init(sites, tiny.model("bert"), torch.Generator().manual_seed(0))
    step: Any = method.plan(sites, v)[sites.layers[0]]
    e = torch.randn(2, 3, 32)
    args, kwargs = step.look(torch.nn.Identity(), (), {"hidden_states": e, "other": 1})
    assert args == ()
    assert kwargs["other"] == 1
    torch.testing.assert_close(kwargs["hidden_states"], coupled(e, v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["bert", "gpt2"])
def test_its_weights_are_counted_and_trained(case: str) -> None:
    model = tiny.model(case)
    tuned = attach(model, METHOD)
    sites = find(model)
    names = [name for name, _ in tuned.named_parameters()]
    assert sum(name.startswith("invertible.") for name in names) == 8
    plain, whole = (
        sum(parse(spelled).count(sites, model.base_model).values())
        for spelled in ("pfeiffer:5", METHOD)  # type: ignore[arg-type]
    )
    assert whole - plain == 32 * 32 // 2 + 3 * 32 // 2
    assert whole == sum(p.numel() for p in tuned.parameters())
    tiny.output(tuned, tiny.batch(model)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in tuned.named_parameters() if n[:3] == "inv")


def test_the_bottlenecks_are_born_as_without_it() -> None:
    model, sites = tiny.model("bert"), find(tiny.model("bert"))
    with_it, without = (
        parse(spelled).init(sites, model, torch.Generator().manual_seed(4)) for spelled in (METHOD, "pfeiffer:5")
    )
    assert all(torch.equal(with_it[name], tensor) for name, tensor in without.items())


def test_checkpoints_are_recomputed_with_it() -> None:
    model: Any = tiny.model("bert")
    grads = []
    for checkpointing in (False, True):
        tuned: Any = attach(model, METHOD).train()
        if checkpointing:
            tiny.checkpoint(tuned)
        tiny.output(tuned, tiny.batch(model)).square().sum().backward()
        grads.append({name: p.grad for name, p in tuned.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-5, atol=1e-6)


def test_layers_without_the_first_one_are_refused() -> None:
    sites = find(tiny.model("bert"))
    for layers in ("1-2", "top:1"):
        with pytest.raises(MethodError, match=rf"goes into layer 0, and layers='{layers}' leaves that out"):
            parse(METHOD, layers=layers).chosen(sites)
    assert parse(METHOD, layers="0,2").chosen(sites) == (0, 2)
    assert parse(METHOD).lowest(sites) == 0


def test_an_odd_width_is_refused() -> None:
    config = tf.BertConfig(vocab_size=60, hidden_size=9, num_hidden_layers=1, num_attention_heads=3)
    with pytest.raises(MethodError, match="a width of 9 has no halves to couple"):
        attach(tf.BertModel(config), METHOD)


def test_it_is_spelled_like_any_field() -> None:
    assert repr(parse("pfeiffer(invertible=true, size=8)")) == "pfeiffer(size=8, invertible=true)"
    assert parse(repr(parse(METHOD))) == parse(METHOD)
    with pytest.raises(MethodError, match="invertible must be true or false, not 3"):
        parse("pfeiffer(invertible=3)")
    with pytest.raises(MethodError, match="houlsby has no field 'invertible'"):
        parse("houlsby(invertible=true)")
