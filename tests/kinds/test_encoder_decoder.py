"""Kind generate on encoder-decoders: learned and written as transformers computes it with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import tiny_base, writing_base
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import adaptree as at
from adaptree.errors import BaseError, UsageError
from adaptree.models.opening import open_task

ROWS = [{"prompt": f"say {a}{b}", "completion": f"{b}{a} {a}"} for a in "abcdef" for b in "ghij"]
PROMPTS = ["say ag", "tell me about the old lion near the river and what it did there", "a", "what is 1 and 2?"]
ARCHITECTURES = ("t5", "bart")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("two-stacks")
    return {name: writing_base(root / name, architecture=name) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def full(folders: dict[str, Path]) -> dict[str, Any]:
    """A task that replaces all weights, by architecture."""
    return {
        name: at.train(ROWS, base=folder, name="all", method="full", lr=5e-3, epochs=30)
        for name, folder in folders.items()
    }


def theirs(bound: Any, folder: Path) -> tuple[Any, Any]:
    """transformers' own model with the task's weights in it, and its tokenizer."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.load_state_dict(bound._copy.model.state_dict())
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_loss_is_transformers_own_over_the_output_alone(
    name: str, folders: dict[str, Path], full: dict[str, Any]
) -> None:
    """Also in a batch, and with prompts and outputs of many lengths."""
    bound, (model, tokenizer) = full[name], theirs(full[name], folders[name])
    rows = [*ROWS[:5], {"prompt": PROMPTS[1], "completion": "b"}, {"prompt": "a", "completion": PROMPTS[1]}]
    total, count = 0.0, 0
    for row in rows:
        ids = tokenizer(row["prompt"], return_tensors="pt").input_ids
        labels = tokenizer(row["completion"], return_tensors="pt").input_ids
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * labels.shape[1]
        count += labels.shape[1]
    found = bound.evaluate(rows)["metrics"]["test"]["perplexity"]
    assert found == pytest.approx(np.exp(total / count), rel=1e-5)
    inputs, targets = [{"prompt": row["prompt"]} for row in rows], [row["completion"] for row in rows]
    together = bound.run(inputs, targets=targets)[1]
    for i, states in enumerate(together):
        alone = bound.run(inputs[i : i + 1], targets=targets[i : i + 1])[1][0]
        assert torch.equal(states, alone), "the bits do not depend on the batch"


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_is_written_as_transformers_writes_each_prompt_alone(
    name: str, beams: int, folders: dict[str, Path], full: dict[str, Any]
) -> None:
    bound, (model, tokenizer) = full[name], theirs(full[name], folders[name])
    found = bound.predict(PROMPTS, max_new_tokens=12, beams=beams)
    assert len({each.text for each in found}) > 1, "these say something of their own"
    for prompt, said in zip(PROMPTS, found, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=12, do_sample=False, num_beams=beams)
        wanted = out[0, 1:].tolist()
        wanted = wanted[: wanted.index(2)] if 2 in wanted else wanted
        assert said.text == bound.base.encoder.text(wanted), prompt
        assert said.tokens == len(wanted)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_are_those_of_plain_pytorch(name: str, folders: dict[str, Path]) -> None:
    """LoRA's on query and value of all three attentions, against W + (alpha / rank) (A B)^T written out by hand."""
    from adaptree.kinds.generate import Generate

    base = at.load_base(folders[name], writes=True)
    kind, method = Generate._of(base.encoder, {}), at.Lora(rank=4, targets="query+value+cross_query+cross_value")
    noise = torch.Generator().manual_seed(1)
    v = method.init(base.hooked.sites, base.hooked.backbone, torch.Generator().manual_seed(0))
    v = {key: (t + 0.05 * torch.randn(t.shape, generator=noise)).requires_grad_() for key, t in v.items()}
    example = kind.taught(base.encoder, [{"prompt": "say ag"}, {"prompt": "b"}], ["ga a", "a longer one"], 64)
    rows = [row for (row,) in example]
    with base.hooked.running(method.plan(base.hooked.sites, v)):
        hidden, mask = base.hidden(rows)
        losses = kind.loss(kind.run(hidden, mask, rows, v, "", base.words()), example, None)
    ours = torch.autograd.grad(losses.sum(), list(v.values()))
    model = AutoModelForSeq2SeqLM.from_pretrained(folders[name], dtype=torch.float32).eval()
    prefix = "" if name == "t5" else "model."
    plain, weights = dict(model.named_parameters()), {}
    for linear in base.hooked.sites.linears:
        if f"{linear.name}.A" in v:
            path = f"{prefix}{linear.path}.weight"
            change = v[f"{linear.name}.A"] @ v[f"{linear.name}.B"]
            weights[path] = plain[path].detach() + method.alpha / method.rank * change.T
    assert any("ecAttention" in path or "encoder_attn" in path for path in weights), "cross attention has it, too"
    tokenizer, wanted = AutoTokenizer.from_pretrained(folders[name]), torch.zeros(())
    for prompt, output in (("say ag", "ga a"), ("b", "a longer one")):
        inputs = {"input_ids": tokenizer(prompt, return_tensors="pt").input_ids}
        inputs["labels"] = tokenizer(output, return_tensors="pt").input_ids
        wanted = wanted + torch.func.functional_call(model, weights, kwargs=inputs).loss
    assert wanted.item() == pytest.approx(losses.sum().item(), abs=1e-5)
    for mine, grad in zip(ours, torch.autograd.grad(wanted, list(v.values())), strict=True):
        torch.testing.assert_close(mine, grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tasks_of_two_stacks_are_kept_composed_and_written_together(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    base, store = at.load_base(folders[name], writes=True), at.Store(tmp_path / "store")
    for i, method in enumerate(("houlsby:4", "houlsby:4", "lora:4")):
        at.train(ROWS, base=base, name=f"t{i}", method=method, lr=1e-2, epochs=2, seed=i, store=store)
    tasks = {f"t{i}": store[f"t{i}"] for i in range(3)}
    opened = open_task(store, "t0")
    for beams in (1, 2):
        rows = base.bind("rows(t0, t1, t2)", tasks=tasks)
        rows.decoding = {"max_new_tokens": 8, "beams": beams}
        asked = [(f"t{i % 3}", prompt) for i, prompt in enumerate(PROMPTS * 2)]
        found = rows.predict([prompt for _, prompt in asked], tasks=[task for task, _ in asked])
        for (task, prompt), said in zip(asked, found, strict=True):
            alone = base.bind(tasks[task]).predict(prompt, max_new_tokens=8, beams=beams)[0]
            assert said.text == alone.text, (task, prompt)
            if task == "t0":
                assert opened.predict(prompt, max_new_tokens=8, beams=beams)[0].text == alone.text
    both = base.bind("average(t0, t1)", tasks=tasks)
    assert [each.text for each in both.predict(PROMPTS, max_new_tokens=6)] == [
        both.predict(prompt, max_new_tokens=6)[0].text for prompt in PROMPTS
    ]
    (chosen,) = opened.predict("say ag", choices=["ga a", "zz"])
    assert sum(chosen.scores.values()) == pytest.approx(1, abs=1e-6)
    pieces: list[str] = []
    (streamed,) = opened.write([{"prompt": PROMPTS[1]}], max_new_tokens=8, on_text=pieces.append)
    assert "".join(pieces) == streamed.text


def test_prompt_and_output_have_room_of_their_own_and_are_cut_and_counted(folders: dict[str, Path]) -> None:
    from adaptree.kinds.generate import Generate

    base = at.load_base(folders["bart"], writes=True)
    kind = Generate._of(base.encoder, {"cut": "right"})
    ((row,),) = kind.taught(base.encoder, [{"prompt": "abcdefghij" * 4}], ["xyz"], 20)
    assert row.truncated
    assert base.encoder.text(row.ids[: row.at.start].tolist()) == ("abcdefghij" * 4)[:18]
    assert row.ids[[0, row.at.start - 1, row.at.start, -1]].tolist() == [1, 2, 1, 2], "both are in their frames"
    with pytest.raises(UsageError, match="there is no room for 97 tokens: the base takes 96"):
        at.train(ROWS, base=base, name="x", method="lora:2", max_steps=1).predict("a", max_new_tokens=97)


def test_a_base_reads_with_its_encoder_unless_it_is_to_write(folders: dict[str, Path], tmp_path: Path) -> None:
    assert at.load_base(folders["t5"]).hooked.sites.depth == 2
    assert at.load_base(folders["t5"], writes=True).hooked.sites.depth == 3
    with pytest.raises(BaseError, match=r"does not write any.*writes=True"):
        at.train(ROWS, base=at.load_base(folders["t5"]), name="x", method="lora:2")
    assert at.load_base(tiny_base(tmp_path / "bert"), writes=True).encoder.writer is None
