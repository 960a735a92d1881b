"""(IA)³ on whole models: against models written out with the scales in them, its counts, and what it refuses."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.methods.ia3 import Ia3
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from adaptree.models.tuned import Tuned
from tests import tiny
from tests.test_reference import attention, difference, gelu, gelu_new, linear, norm

Weights = Mapping[str, Tensor]
FITS = [case for case in tiny.CASES if case not in ("deberta", "roformer")]


def bert(w: Weights, v: Weights, ids: Tensor, mask: Tensor) -> Tensor:
    eps, heads = 1e-12, 4
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], w, {}, "embeddings.LayerNorm", eps)
    allowed = mask[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"encoder.layer.{i}"
        q, k, value = (linear(x, w, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        h = attention(q, v[f"{i}.key.scale"] * k, v[f"{i}.value.scale"] * value, heads, allowed)
        x = norm(linear(h, w, f"{at}.attention.output.dense") + x, w, {}, f"{at}.attention.output.LayerNorm", eps)
        h = v[f"{i}.down.scale"] * gelu(linear(x, w, f"{at}.intermediate.dense"))
        x = norm(linear(h, w, f"{at}.output.dense") + x, w, {}, f"{at}.output.LayerNorm", eps)
    return x


def gpt2(w: Weights, v: Weights, ids: Tensor, mask: Tensor) -> Tensor:
    eps, heads, T = 1e-5, 4, ids.shape[1]

    def conv(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"].T, w[f"{name}.bias"])

    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() & mask[:, None, :]
    for i in range(3):
        q, k, value = conv(norm(x, w, {}, f"h.{i}.ln_1", eps), f"h.{i}.attn.c_attn").chunk(3, -1)
        h = attention(q, v[f"{i}.key.scale"] * k, v[f"{i}.value.scale"] * value, heads, allowed)
        x = x + conv(h, f"h.{i}.attn.c_proj")
        h = gelu_new(conv(norm(x, w, {}, f"h.{i}.ln_2", eps), f"h.{i}.mlp.c_fc"))
        x = x + conv(v[f"{i}.down.scale"] * h, f"h.{i}.mlp.c_proj")
    return norm(x, w, {}, "ln_f", eps)


REFERENCES: dict[str, Callable[..., Tensor]] = {"bert": bert, "gpt2": gpt2}


@torch.no_grad()
def shake(tuned: Tuned, seed: int = 1) -> Tuned:
    generator = torch.Generator().manual_seed(seed)
    for p in tuned.parameters():
        p.add_(0.5 * torch.randn(p.shape, generator=generator))
    return tuned


@pytest.mark.parametrize("case", REFERENCES)
def test_outputs_and_gradients_equal_the_written_out_model(case: str) -> None:
    model = tiny.model(case)
    tuned = shake(attach(model, "ia3"))
    v = {name: p.detach().clone().requires_grad_() for name, p in tuned.named_parameters()}
    inputs = tiny.batch(model, rows=6, tokens=11)
    real = inputs["attention_mask"].bool()
    found = tuned(**inputs).last_hidden_state[real]
    w = {name: p.detach() for name, p in model.named_parameters()}
    written = REFERENCES[case](w, v, inputs["input_ids"], real)[real]
    assert difference(found, model(**inputs).last_hidden_state[real]) > 0.05, "it must show"
    assert difference(found, written) < 1e-6
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)) / len(found)
    (found * towards).sum().backward()
    (written * towards).sum().backward()
    for name, p in tuned.named_parameters():
        assert p.grad is not None, name
        assert v[name].grad is not None, name
        assert p.grad.any(), name
        assert difference(p.grad, v[name].grad) < 1e-5, name


def test_modernberts_fused_map_is_scaled_in_the_keys_and_values_alone() -> None:
    """Scaling the rows of the weights that make keys and values is the same thing."""
    model: Any = tiny.model("modernbert")
    tuned, inputs = shake(attach(copy.deepcopy(model), "ia3")), tiny.batch(model)
    scales = dict(tuned.named_parameters())
    found = tiny.output(tuned, inputs)
    assert difference(found, tiny.output(model, inputs)) > 0.05
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            _, k, v = layer.attn.Wqkv.weight.chunk(3)
            k.mul_(scales[f"{i}.key.scale"][:, None])
            v.mul_(scales[f"{i}.value.scale"][:, None])
            layer.mlp.Wo.weight.mul_(scales[f"{i}.down.scale"])
    assert model.layers[0].attn.Wqkv.bias is None
    assert difference(found.detach(), tiny.output(model, inputs).detach()) < 1e-6


@torch.no_grad()  # for T5 torch chooses another kernel of attention when it records gradients
@pytest.mark.parametrize("case", FITS)
def test_at_birth_it_is_exactly_the_base(case: str) -> None:
    model = tiny.model(case)
    tuned, inputs = attach(model, "ia3"), tiny.batch(model)
    assert torch.equal(tiny.output(tuned, inputs), tiny.output(model, inputs))
    assert not torch.equal(tiny.output(shake(tuned), inputs), tiny.output(model, inputs))
    other = attach(model, "ia3(scale_init=0.9)")
    assert all((p == 0.9).all() for p in other.parameters())
    assert not torch.equal(tiny.output(other, inputs), tiny.output(model, inputs))


@pytest.mark.parametrize("case", FITS)
def test_every_scale_gets_a_gradient_at_birth(case: str) -> None:
    tuned = attach(tiny.model(case), "ia3").train()
    out = tiny.output(tuned, tiny.batch(tuned))
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(7))).sum().backward()
    assert [name for name, p in tuned.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_counts_are_the_papers() -> None:
    with torch.device("meta"):
        bert, llama = BertModel(BertConfig()), LlamaModel(LlamaConfig(num_hidden_layers=2, num_key_value_heads=4))
    assert parse("ia3").count(find(bert), bert) == {"adapters": 55_296, "norms": 0}  # 12 · (768 + 768 + 3072)
    assert parse("ia3(layers=top:1)").count(find(bert), bert) == {"adapters": 4_608, "norms": 0}
    # Grouped queries: keys and values are 4 · 128 wide.
    assert parse("ia3").count(find(llama), llama) == {"adapters": 2 * (512 + 512 + 11_008), "norms": 0}
    assert sum(t.numel() for t in parse("ia3").init(find(bert), bert, torch.Generator()).values()) == 55_296


def test_layers_restricts_it() -> None:
    tuned = attach(tiny.model("gpt2"), "ia3(layers=1)")
    assert sorted(tuned.state_dict()) == ["1.down.scale", "1.key.scale", "1.value.scale"]


@torch.no_grad()
@pytest.mark.parametrize("case", ["bert", "gpt2", "modernbert", "t5", "llama", "albert"])
def test_a_batch_of_two_tasks_equals_one_by_one(case: str) -> None:
    model = tiny.model(case)
    how, owners, inputs = parse("ia3"), [0, 1, 1, 0, 1], tiny.batch(model)
    tasks = [dict(shake(attach(model, how), seed).named_parameters()) for seed in (1, 2)]
    stacked = {name: torch.stack([tasks[owner][name] for owner in owners])[:, None] for name in tasks[0]}
    hooked = HookedModel(model)
    with hooked.running(how.plan(hooked.sites, stacked)):
        mixed = tiny.output(model, inputs)
    for i, owner in enumerate(owners):
        with hooked.running(how.plan(hooked.sites, tasks[owner])):
            alone = tiny.output(model, {key: value[i : i + 1] for key, value in inputs.items()})
        torch.testing.assert_close(mixed[i : i + 1], alone, atol=1e-5, rtol=1e-5)


def gradients(tuned: Tuned) -> dict[str, Tensor]:
    torch.manual_seed(5)
    tuned.zero_grad()
    tiny.output(tuned, tiny.batch(tuned)).square().sum().backward()
    return {name: p.grad.clone() for name, p in tuned.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", ["bert", "gpt2"])
def test_gradient_checkpointing_gives_the_same_gradients(case: str, reentrant: bool) -> None:
    model = tiny.model(case, head=True)
    model.config.use_cache = False  # type: ignore[union-attr]
    tuned = shake(attach(model, "ia3")).train()
    want = gradients(tuned)
    tiny.checkpoint(tuned, use_reentrant=reentrant)
    got = gradients(tuned)
    assert set(got) == set(want) == {name for name, _ in tuned.named_parameters()}
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_two_plans_on_one_model_in_two_threads_do_not_meet() -> None:
    """What goes into a module is replaced in one thread and not in the other."""
    model = tiny.model("bert")
    hooked, how, inputs = HookedModel(model), parse("ia3"), tiny.batch(model)
    plans = [how.plan(hooked.sites, dict(shake(attach(model, how), seed).named_parameters())) for seed in (1, 2)]
    together: list[list[Tensor]] = [[], []]

    def run(i: int) -> None:
        for _ in range(4):
            with hooked.running(plans[i]):
                together[i].append(tiny.output(model, inputs))

    bare = tiny.output(model, inputs)
    run(0), run(1)
    alone = [together[i].pop() for i in (0, 1)]
    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not torch.equal(*alone)
    assert all(len(together[i]) == 7 and all(torch.equal(out, alone[i]) for out in together[i]) for i in (0, 1))
    assert torch.equal(tiny.output(model, inputs), bare)


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("deberta", "one fused map, which interleaves them head by head"),
        ("roformer", "no key, value and down maps are known for 'roformer'"),
    ],
)
def test_a_base_it_cannot_scale_is_refused(case: str, what: str) -> None:
    model, row = tiny.model(case), tiny.CASES[case].row
    with pytest.raises(MethodError, match=what):
        attach(model, "ia3", architecture=row)
    with pytest.raises(MethodError, match=what):
        parse("ia3").count(find(model, row), model)


@pytest.mark.parametrize("value", [-1, "one", True, float("nan")])
def test_a_bad_scale_is_refused(value: Any) -> None:
    with pytest.raises(MethodError, match="scale_init must be a number"):
        Ia3(scale_init=value)


def test_scales_do_not_decay() -> None:
    assert not any(Ia3().decays(f"0.{role}.scale") for role in ("key", "value", "down"))


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_keys_and_values_of_cross_attention_are_scaled_too(case: str) -> None:
    """Liu et al., §3.3: L(d_k + d_v + d_ff) in an encoder, L(2 d_k + 2 d_v + d_ff) in a decoder."""
    model = tiny.model(case)
    tuned = attach(model, "ia3")
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    sites = find(model)
    crossed = [linear for linear in sites.linears if linear.role in ("cross_key", "cross_value")]
    decoder = {linear.layer for linear in crossed}
    assert decoder
    widths = {(linear.layer, linear.role): linear for linear in sites.linears}
    expected = 0
    for layer in range(sites.depth):
        twice = 2 if layer in decoder else 1
        expected += (
            twice * (widths[layer, "key"].outputs + widths[layer, "value"].outputs) + widths[layer, "down"].inputs
        )
    assert tuned.count()["adapters"] == expected
    # A scale of an output is a scale of the map's rows; of an input, of its columns.
    folded = copy.deepcopy(model)
    scales = {name: p.detach() for name, p in tuned.named_parameters()}
    with torch.no_grad():
        for linear in sites.linears:
            if (scale := scales.get(f"{linear.name}.scale")) is not None:
                module = folded.get_submodule(linear.path)
                module.weight.mul_(scale if linear.role == "down" else scale[:, None])
                if linear.role != "down" and module.bias is not None:
                    module.bias.mul_(scale)
    inputs = tiny.batch(model, rows=4, tokens=7)
    found, written, bare = (tiny.output(each, inputs).detach() for each in (tuned, folded, model))
    assert float((found - bare).abs().max()) > 0.01
    assert float((found - written).abs().max() / written.abs().max()) < 1e-6
