"""LoRA on whole models: against models written out with the change in the weights, its counts, and what it refuses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from adaptree import attach
from adaptree.errors import MethodError
from adaptree.methods import parse
from adaptree.methods.lora import Lora
from adaptree.models.hooks import HookedModel
from adaptree.models.sites import find
from adaptree.models.tuned import Tuned
from tests import tiny
from tests.test_reference import attention, difference, gelu, gelu_new, norm

Weights = Mapping[str, Tensor]
ALL = "query+key+value+output+up+down"


def linear(x: Tensor, w: Weights, name: str, v: Weights, at: str, scale: float) -> Tensor:
    """The change is put into the weight itself, (out, in)."""
    W = w[f"{name}.weight"]
    if f"{at}.A" in v:
        W = W + scale * torch.einsum("ir,ro->oi", v[f"{at}.A"], v[f"{at}.B"])
    return F.linear(x, W, w[f"{name}.bias"])


def bert(w: Weights, v: Weights, scale: float, ids: Tensor, mask: Tensor) -> Tensor:
    eps, heads = 1e-12, 4
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], w, {}, "embeddings.LayerNorm", eps)
    allowed = mask[:, None, :].expand(-1, ids.shape[1], -1)
    for i in range(3):
        at = f"encoder.layer.{i}"
        q, k, value = (
            linear(x, w, f"{at}.attention.self.{role}", v, f"{i}.{role}", scale) for role in ("query", "key", "value")
        )
        h = attention(q, k, value, heads, allowed)
        h = linear(h, w, f"{at}.attention.output.dense", v, f"{i}.output", scale)
        x = norm(h + x, w, {}, f"{at}.attention.output.LayerNorm", eps)
        h = gelu(linear(x, w, f"{at}.intermediate.dense", v, f"{i}.up", scale))
        h = linear(h, w, f"{at}.output.dense", v, f"{i}.down", scale)
        x = norm(h + x, w, {}, f"{at}.output.LayerNorm", eps)
    return x


def gpt2(w: Weights, v: Weights, scale: float, ids: Tensor, mask: Tensor) -> Tensor:
    eps, heads, T = 1e-5, 4, ids.shape[1]
    w = {name: p.T if p.dim() == 2 and ".h." in f".{name}" else p for name, p in w.items()}  # GPT-2's are transposed
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    allowed = torch.ones(T, T, dtype=torch.bool).tril() & mask[:, None, :]
    for i in range(3):
        h = norm(x, w, {}, f"h.{i}.ln_1", eps)
        q, k, value = linear(h, w, f"h.{i}.attn.c_attn", v, f"{i}.qkv", scale).chunk(3, -1)
        h = attention(q, k, value, heads, allowed)
        x = x + linear(h, w, f"h.{i}.attn.c_proj", v, f"{i}.output", scale)
        h = gelu_new(linear(norm(x, w, {}, f"h.{i}.ln_2", eps), w, f"h.{i}.mlp.c_fc", v, f"{i}.up", scale))
        x = x + linear(h, w, f"h.{i}.mlp.c_proj", v, f"{i}.down", scale)
    return norm(x, w, {}, "ln_f", eps)


REFERENCES: dict[str, Callable[..., Tensor]] = {"bert": bert, "gpt2": gpt2}


@torch.no_grad()
def shake(tuned: Tuned, seed: int = 1) -> Tuned:
    generator = torch.Generator().manual_seed(seed)
    for p in tuned.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return tuned


@pytest.mark.parametrize("method", ["lora:5", f"lora(rank=3, alpha=4, targets={ALL})", "lora(targets=all)"])
@pytest.mark.parametrize("case", REFERENCES)
def test_outputs_and_gradients_equal_the_written_out_model(case: str, method: str) -> None:
    model = tiny.model(case)
    tuned = shake(attach(model, method))
    how = tuned.method
    assert isinstance(how, Lora)
    v = {name: p.detach().clone().requires_grad_() for name, p in tuned.named_parameters()}
    inputs = tiny.batch(model, rows=6, tokens=11)
    real = inputs["attention_mask"].bool()
    found = tuned(**inputs).last_hidden_state[real]
    w = {name: p.detach() for name, p in model.named_parameters()}
    written = REFERENCES[case](w, v, how.alpha / how.rank, inputs["input_ids"], real)[real]
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


@torch.no_grad()  # for T5 torch chooses another kernel of attention when it records gradients
@pytest.mark.parametrize("case", [case for case in tiny.CASES if case != "roformer"])
def test_at_birth_it_is_exactly_the_base(case: str) -> None:
    model = tiny.model(case)
    tuned, inputs = attach(model, "lora(targets=all)"), tiny.batch(model)
    assert torch.equal(tiny.output(tuned, inputs), tiny.output(model, inputs))
    assert not torch.equal(tiny.output(shake(tuned), inputs), tiny.output(model, inputs))


def on_meta(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(config)


@pytest.mark.parametrize(
    ("method", "adapters"),
    [
        ("lora", 294_912),  # 12 · 2 · 8 · (768 + 768)
        ("lora:1", 36_864),
        ("lora(rank=4, targets=query+key+value+output)", 294_912),
        ("lora(targets=up+down)", 737_280),  # 12 · 2 · 8 · (768 + 3072)
        ("lora(targets=all)", 1_327_104),
        ("lora(layers=top:3)", 73_728),
    ],
)
def test_counts_on_bert_base(method: str, adapters: int) -> None:
    model = on_meta(BertModel, BertConfig())
    how = parse(method)
    assert how.count(find(model), model) == {"adapters": adapters, "norms": 0}
    born = how.init(find(model), model, torch.Generator().manual_seed(0))
    assert sum(t.numel() for t in born.values()) == adapters


def test_a_fused_map_is_changed_as_a_whole() -> None:
    model = on_meta(GPT2Model, GPT2Config())
    counts = {how: parse(f"lora(targets={how})").count(find(model), model) for how in ("query+value", "key", "all")}
    assert counts["query+value"] == counts["key"] == {"adapters": 12 * 8 * (768 + 2304), "norms": 0}
    assert counts["all"]["adapters"] == 12 * 8 * (768 + 2304 + 2 * 768 + 2 * (768 + 3072))


def test_layers_restricts_it() -> None:
    tuned = attach(tiny.model("bert"), "lora(layers=1)")
    assert sorted(tuned.state_dict()) == ["1.query.A", "1.query.B", "1.value.A", "1.value.B"]


@torch.no_grad()
@pytest.mark.parametrize("case", ["bert", "gpt2", "t5", "llama"])
def test_a_batch_of_two_tasks_equals_one_by_one(case: str) -> None:
    model = tiny.model(case)
    how, owners, inputs = parse("lora(targets=all)"), [0, 1, 1, 0, 1], tiny.batch(model)
    tasks = [dict(shake(attach(model, how), seed).named_parameters()) for seed in (1, 2)]
    stacked = {name: torch.stack([tasks[owner][name] for owner in owners]) for name in tasks[0]}
    hooked = HookedModel(model)
    with hooked.running(how.plan(hooked.sites, stacked)):
        mixed = tiny.output(model, inputs)
    for i, owner in enumerate(owners):
        with hooked.running(how.plan(hooked.sites, tasks[owner])):
            alone = tiny.output(model, {key: value[i : i + 1] for key, value in inputs.items()})
        torch.testing.assert_close(mixed[i : i + 1], alone, atol=1e-5, rtol=1e-5)


def test_rows_of_several_tasks_are_refused_where_a_map_is_shared_by_them() -> None:
    model = tiny.model("deberta-v2")  # it maps its table of relative positions with the queries' own map
    how, hooked = parse("lora"), HookedModel(model)
    v = how.init(hooked.sites, hooked.backbone, torch.Generator().manual_seed(0))
    stacked = {name: torch.stack([tensor] * 5) for name, tensor in v.items()}
    with (
        hooked.running(how.plan(hooked.sites, stacked)),
        pytest.raises(MethodError, match="cannot be of several tasks"),
    ):
        model(**tiny.batch(model))


def gradients(tuned: Tuned) -> dict[str, Tensor]:
    torch.manual_seed(5)
    tuned.zero_grad()
    tiny.output(tuned, tiny.batch(tuned)).square().sum().backward()
    return {name: p.grad.clone() for name, p in tuned.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("case", ["bert", "gpt2"])
def test_gradient_checkpointing_gives_the_same_gradients(case: str, dropout: float, reentrant: bool) -> None:
    """Also with dropout, which a reentrant checkpoint first draws without gradients."""
    model = tiny.model(case, head=True)
    model.config.use_cache = False  # type: ignore[union-attr]
    tuned = shake(attach(model, parse("lora(targets=all)", dropout=dropout))).train()
    want = gradients(tuned)
    tiny.checkpoint(tuned, use_reentrant=reentrant)
    got = gradients(tuned)
    assert set(got) == set(want) == {name for name, _ in tuned.named_parameters()}
    assert all(grad.any() for grad in want.values())
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_dropout_is_drawn_in_training_and_not_in_prediction() -> None:
    model = tiny.model("bert")
    plain, dropping = (shake(attach(model, f"lora(dropout={p})")) for p in (0.0, 0.5))
    inputs = tiny.batch(model)
    with torch.no_grad():
        assert torch.equal(tiny.output(plain, inputs), tiny.output(dropping, inputs))
    drawn = [tiny.output(dropping, inputs).detach() for _ in range(2)]
    assert not torch.equal(*drawn)


def test_two_tasks_in_two_threads_do_not_meet() -> None:
    model = tiny.model("bert")
    inputs = tiny.batch(model)
    tasks = [shake(attach(model, "lora(targets=all)"), seed) for seed in (1, 2)]
    alone = [tiny.output(task, inputs) for task in tasks]
    together: list[list[Tensor]] = [[], []]

    def run(i: int) -> None:
        together[i] += [tiny.output(tasks[i], inputs) for _ in range(4)]

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not torch.equal(*alone)
    assert all(len(together[i]) == 4 and all(torch.equal(out, alone[i]) for out in together[i]) for i in (0, 1))


def test_a_rank_above_the_width_warns_once() -> None:
    with pytest.warns(UserWarning, match="rank 40 is larger than the width 32") as said:
        attach(tiny.model("bert"), "lora:40")
    assert len(said) == 1


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"rank": 2.5}, "rank must be"),
        ({"alpha": -1}, "alpha must be"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"dropout": -0.1}, "dropout must be"),
        ({"targets": "query+valeu"}, "Did you mean 'value'"),
        ({"targets": ""}, "targets"),
        ({"targets": "all+query"}, "targets"),
        ({"targets": 3}, "cannot be read"),
        ({"targets": "query+query"}, None),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], what: str | None) -> None:
    if what is None:
        assert Lora(**fields)
        return
    with pytest.raises(MethodError, match=what):
        Lora(**fields)


@pytest.mark.parametrize(
    ("case", "method", "what"),
    [
        ("bert", "lora(targets=query+gate)", "no linear map 'gate'.*They have: query, key, value, output, up, down"),
        ("roformer", "lora", "no linear maps are known for 'roformer'"),
    ],
)
def test_a_base_without_such_a_map_is_refused(case: str, method: str, what: str) -> None:
    model, row = tiny.model(case), tiny.CASES[case].row
    with pytest.raises(MethodError, match=what):
        attach(model, method, architecture=row)
    with pytest.raises(MethodError, match=what):
        parse(method).count(find(model, row), model)


def test_its_spelling_reads_back() -> None:
    how = Lora(rank=4, alpha=8.0, targets="query+up", layers="top:2")
    assert parse(repr(how)) == how


@pytest.mark.skipif(not os.environ.get("ADAPTREE_PEERS"), reason="ADAPTREE_PEERS names no folder: make peers")
@pytest.mark.parametrize("case", ["bert", "gpt2"])
def test_outputs_equal_pefts(case: str) -> None:
    """Same A and B, same inputs: what peft computes with them, handed over as a file."""
    given = load_file(Path(os.environ["ADAPTREE_PEERS"]) / f"lora_{case}.safetensors")
    parts = {kind: {k[len(kind) :]: t for k, t in given.items() if k.startswith(kind)} for kind in ("base.", "v.")}
    model = tiny.model(case)
    model.load_state_dict(parts["base."])
    tuned = attach(model, "lora(rank=4, alpha=12)")
    tuned.load_state_dict(parts["v."])
    mask = given["attention_mask"]
    found = tuned(input_ids=given["input_ids"], attention_mask=mask).last_hidden_state[mask.bool()]
    assert difference(found, given["bare"][mask.bool()]) > 0.05
    assert difference(found, given["output"][mask.bool()]) < 1e-6
