"""Kind generate: what is learned and written is what transformers computes with the same weights, token for token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import tiny_base, writing_base
from transformers import AutoModelForCausalLM, AutoTokenizer

import adaptree as at
from adaptree.cli import main
from adaptree.data.encode import Encoder
from adaptree.errors import AdaptreeError, BaseError, UsageError
from adaptree.kinds import written
from adaptree.kinds.generate import Generate
from adaptree.models.embedded import config_of

ROWS = [{"prompt": f"say {a}{b}", "completion": f"{b}{a} {a}"} for a in "abcdef" for b in "ghij"]
LONG = "tell me about the old lion near the river and what it did there"
PROMPTS = ["say ag", LONG, "a", "what is 1 and 2?"]
ARCHITECTURES = ("llama", "untied", "gpt2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("writing")
    return {name: writing_base(root / name, architecture=name) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def full(folders: dict[str, Path]) -> dict[str, Any]:
    """A task that replaces all weights, by architecture."""
    return {
        name: at.train(ROWS, base=folder, name="all", method="full", lr=1e-3, epochs=2)
        for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def houlsby(folders: dict[str, Path]) -> Any:
    return at.train(ROWS, base=folders["llama"], name="echo", method="houlsby:8", lr=1e-2, epochs=4)


def theirs(bound: Any, folder: Path) -> Any:
    """transformers' own model with the task's weights in it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.load_state_dict(bound._copy.model.state_dict())
    return model


def ids_of(bound: Any, prompt: str) -> torch.Tensor:
    (example,) = bound.read(bound.kind.inputs(prompt, bound.task.record))
    return torch.from_numpy(example[0].ids.astype(np.int64))[None]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_perplexity_of_outputs_is_that_of_transformers_own_loss(
    name: str, folders: dict[str, Path], full: dict[str, Any]
) -> None:
    bound, model = full[name], theirs(full[name], folders[name])
    total, count = 0.0, 0
    for row in ROWS[:7]:
        start = ids_of(bound, row["prompt"])
        output = torch.tensor([[*bound.base.encoder.pieces([row["completion"]])[0].ids.tolist(), 2]])
        ids = torch.cat([start, output], 1)
        labels = torch.cat([torch.full_like(start, -100), output], 1)
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * output.shape[1]
        count += output.shape[1]
    found = bound.evaluate(ROWS[:7])["metrics"]["test"]["perplexity"]
    assert found == pytest.approx(np.exp(total / count), rel=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_of_prompts_is_written_as_transformers_writes_each_alone(
    name: str, beams: int, folders: dict[str, Path], full: dict[str, Any]
) -> None:
    bound, model = full[name], theirs(full[name], folders[name])
    found = bound.predict(PROMPTS, max_new_tokens=12, beams=beams)
    for prompt, said in zip(PROMPTS, found, strict=True):
        ids = ids_of(bound, prompt)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, num_beams=beams,
            eos_token_id=2, pad_token_id=2,
        )  # fmt: skip
        wanted = [token for token in out[0, ids.shape[1] :].tolist() if token != 2]
        assert said.text == bound.base.encoder.text(wanted), prompt
        assert said.tokens == len(wanted)


def test_gradients_are_those_of_plain_pytorch(folders: dict[str, Path]) -> None:
    """LoRA's, against transformers' model whose weights are W + (alpha / rank) (A B)^T, written out by hand."""
    base = at.load_base(folders["llama"])
    kind, method = Generate._of(base.encoder, {}), at.Lora(rank=4)
    noise = torch.Generator().manual_seed(1)
    v = method.init(base.hooked.sites, base.hooked.backbone, torch.Generator().manual_seed(0))
    v = {key: (t + 0.05 * torch.randn(t.shape, generator=noise)).requires_grad_() for key, t in v.items()}
    (example,) = kind.taught(base.encoder, [{"prompt": "say ag"}], ["ga a"], 64)
    with base.hooked.running(method.plan(base.hooked.sites, v)):
        hidden, mask = base.hidden(example)
        loss = kind.loss(kind.run(hidden, mask, example, v, "", base.words()), [example], None)[0]
    ours = torch.autograd.grad(loss, list(v.values()))
    model = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32).eval()
    plain, weights = dict(model.named_parameters()), {}
    for layer in range(2):
        for role, name in (("query", "q_proj"), ("value", "v_proj")):
            path = f"model.layers.{layer}.self_attn.{name}.weight"
            change = v[f"{layer}.{role}.A"] @ v[f"{layer}.{role}.B"]
            weights[path] = plain[path].detach() + method.alpha / method.rank * change.T
    assert len(weights) == 4
    ids = torch.from_numpy(example[0].ids.astype(np.int64))[None]
    labels = ids.clone()
    labels[0, : example[0].at.start] = -100
    wanted = torch.func.functional_call(model, weights, kwargs={"input_ids": ids, "labels": labels}).loss
    assert wanted.item() == pytest.approx(loss.item(), abs=1e-6)
    for mine, grad in zip(ours, torch.autograd.grad(wanted, list(v.values())), strict=True):
        torch.testing.assert_close(mine, grad, atol=1e-6, rtol=1e-4)


METHODS = ("houlsby:4", "pfeiffer:4", "parallel_adapter:4", "lora:4", "lora(rank=4, targets=all)", "ia3", "norms",
           "top:1", "lt_sft", "scaled_parallel:4")  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_in_a_batch_what_it_writes_alone(method: str, folders: dict[str, Path]) -> None:
    bound = at.train(ROWS, base=folders["llama"], name="m", method=method, epochs=1)
    assert bound.task.record.parameters["head"] == 0
    together = bound.predict(PROMPTS, max_new_tokens=6)
    assert [bound.predict(prompt, max_new_tokens=6)[0].text for prompt in PROMPTS] == [each.text for each in together]


def test_adapters_act_in_every_step_with_the_cache_as_without(houlsby: Any) -> None:
    """Greedy writing, against whole forward passes over all tokens so far."""
    for prompt in PROMPTS:
        ids = ids_of(houlsby, prompt)
        with torch.inference_mode(), houlsby.base.hooked.running(houlsby._plan):
            for _ in range(8):
                states = houlsby.base.hooked.backbone(input_ids=ids).last_hidden_state[0, -1]
                ids = torch.cat([ids, (houlsby.base.words() @ states).argmax().view(1, 1)], 1)
                if int(ids[0, -1]) == 2:
                    break
        tokens = [token for token in ids[0, ids_of(houlsby, prompt).shape[1] :].tolist() if token != 2]
        assert houlsby.predict(prompt, max_new_tokens=8)[0].text == houlsby.base.encoder.text(tokens)


def test_a_text_is_handed_on_as_it_is_written_and_ends_before_a_stop(houlsby: Any) -> None:
    (whole,) = houlsby.predict(LONG, max_new_tokens=20)
    pieces: list[str] = []
    (same,) = houlsby.write([{"prompt": LONG}], max_new_tokens=20, on_text=pieces.append)
    assert "".join(pieces) == same.text == whole.text
    assert len(pieces) > 1
    stop = whole.text[3:5]
    pieces.clear()
    (cut,) = houlsby.write([{"prompt": LONG}], max_new_tokens=20, stop=(stop,), on_text=pieces.append)
    assert cut.text == whole.text[: whole.text.index(stop)] == "".join(pieces)
    assert cut.finished
    assert houlsby.predict(LONG, max_new_tokens=20, stop="never to be seen")[0].text == whole.text


@pytest.fixture(scope="module")
def several(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A base, and a store with tasks of several methods that write."""
    base = at.load_base(folders["llama"])
    store = at.Store(tmp_path_factory.mktemp("several") / "store")
    for i, method in enumerate(("houlsby:4", "houlsby:4", "lora:4", "full", "pfeiffer:4", "pfeiffer:4")):
        at.train(ROWS, base=base, name=f"t{i}", method=method, lr=1e-2, epochs=2, seed=i, store=store)
    return base, store


@pytest.mark.parametrize("beams", [1, 2])
def test_tasks_that_share_a_batch_write_what_each_writes_alone(beams: int, several: tuple[Any, Any]) -> None:
    base, store = several
    tasks = {name: store[name] for name in ("t0", "t1", "t2", "t3")}
    rows = base.bind("rows(t0, t1, t2, t3)", tasks=tasks)
    rows.decoding = {"max_new_tokens": 8, "beams": beams}
    asked = [(f"t{i % 4}", prompt) for i, prompt in enumerate(PROMPTS * 3)]
    found = rows.predict([prompt for _, prompt in asked], tasks=[name for name, _ in asked])
    assert rows.apart.keys() == {"t3"}
    for (name, prompt), said in zip(asked, found, strict=True):
        assert said.text == base.bind(tasks[name]).predict(prompt, max_new_tokens=8, beams=beams)[0].text, (
            name,
            prompt,
        )
    both = base.bind("parallel(t0, t2)", tasks=tasks)
    both.decoding = {"max_new_tokens": 8}
    (answer,) = both.predict(LONG)
    assert answer["t2"].text == base.bind(tasks["t2"]).predict(LONG, max_new_tokens=8)[0].text


@pytest.mark.parametrize("expression", ["average(t0, t1)", "stack(t4, t5)", "fuse(t4, t5)"])
def test_compositions_write(expression: str, several: tuple[Any, Any]) -> None:
    base, store = several
    tasks = {name: store[name] for name in store.names()}
    if expression.startswith("fuse"):
        bound = at.train(ROWS, base=base, name="fused", method=expression, store=store, epochs=1)
    else:
        bound = base.bind(expression, tasks=tasks)
    alone = [bound.predict(prompt, max_new_tokens=6)[0].text for prompt in PROMPTS]
    assert [each.text for each in bound.predict(PROMPTS, max_new_tokens=6)] == alone


def test_sampling_is_the_same_with_the_same_seed(houlsby: Any) -> None:
    said = [
        houlsby.predict(LONG, max_new_tokens=12, temperature=1.5, top_p=0.9, seed=seed)[0].text for seed in (1, 1, 2)
    ]
    assert said[0] == said[1] != said[2]


def test_the_likeliest_of_some_texts_is_chosen_with_its_probability(houlsby: Any) -> None:
    (found,) = houlsby.predict("say ag", choices=["ga a", "zz", "the lion"])
    assert set(found.scores) == {"ga a", "zz", "the lion"}
    assert sum(found.scores.values()) == pytest.approx(1, abs=1e-6)
    assert found.text == max(found.scores, key=lambda text: found.scores[text])
    ratio = [np.log(found.scores[a] / found.scores["zz"]) for a in ("ga a", "the lion")]
    losses = {
        text: houlsby.kind.decode(
            houlsby.run([{"prompt": "say ag"}], targets=[text])[1], houlsby.read([{"prompt": "say ag"}], [text])
        )[0][0]
        for text in found.scores
    }
    assert ratio == pytest.approx([losses["zz"] - losses[a] for a in ("ga a", "the lion")], abs=1e-4)


def test_the_template_of_chats_is_rendered_as_transformers_does(tmp_path: Path) -> None:
    folder = writing_base(tmp_path / "chat", chat=True)
    theirs_ = AutoTokenizer.from_pretrained(folder)
    encoder = Encoder.load(folder, config_of(folder))
    kind = Generate._of(encoder, {})
    assert kind.template == "chat"
    messages = [
        {"role": "user", "content": "say a"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "and b"},
    ]
    (example,) = kind.examples(encoder, [{"messages": messages}], 90)
    wanted = theirs_.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    assert example[0].ids.tolist() == list(wanted["input_ids"] if hasattr(wanted, "keys") else wanted)
    (example,) = kind.examples(encoder, [{"prompt": "say a"}], 90)
    assert encoder._tokenizer.decode(example[0].ids.tolist(), skip_special_tokens=False).startswith("<s>user say a</s>")


def test_a_file_of_messages_learns_the_last_answer(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]}
        for row in ROWS
    ]
    bound = at.train(rows, base=writing_base(tmp_path / "chat", chat=True), name="chat", method="lora:4", epochs=1)
    assert bound.task.record.kind == "generate"
    assert bound.task.record.extra["template"] == "chat"
    assert bound.predict([{"role": "user", "content": "say ag"}], max_new_tokens=4)
    assert bound.predict("say ag", max_new_tokens=4)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"prompt": "say a", "completion": "b"}, "generate"),
        ({"instruction": "say", "input": "a b", "output": "c"}, "generate"),
        ({"input": "one two three {i}", "output": "some words written for it {i}"}, "generate"),
        ({"input": "one two three {i}", "output": "yes"}, "classify"),
        ({"text": "one two three {i}", "label": "yes"}, "classify"),
    ],
    ids=["prompt", "instruction", "written", "labels", "text"],
)
def test_the_columns_say_whether_something_is_written(columns: dict[str, str], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for i in range(40):
            row = {key: value.replace("{i}", str(i)) for key, value in columns.items()}
            if kind == "classify":
                row = {key: "no" if value == "yes" and i % 2 else value for key, value in row.items()}
            file.write(json.dumps(row) + "\n")
    assert at.check(path, base=writing_base(tmp_path / "base")).to_dict()["kind"] == kind


def test_rows_with_the_same_input_are_references_of_one_text() -> None:
    texts, references = written.grouped(["a", "b", "a"], ["x y", "z", "x y"], ["x y", "z z", "y x"])
    assert (texts, references) == (["x y", "z"], [["x y", "y x"], ["z z"]])
    scores, intervals = written.score(texts, references)
    assert scores["exact_match"] == 0.5
    assert all(low <= high for low, high in intervals.values())


def test_bleu_and_chrf_are_sacrebleus_and_rouge_is_the_longest_common_subsequence() -> None:
    from sacrebleu import corpus_bleu, corpus_chrf

    texts = ["the cat sat on the mat today", "a dog ran home very fast"]
    references = [["the cat sat on a mat today", "a cat was on the mat"], ["a dog ran home fast"]]
    scores, _ = written.score(texts, references)
    streams = [[of[i] if i < len(of) else None for of in references] for i in range(2)]
    assert scores["bleu"] == pytest.approx(corpus_bleu(texts, streams).score / 100)
    assert scores["chrf"] == pytest.approx(corpus_chrf(texts, streams).score / 100)
    assert written.rouge_l("the cat sat", "the dog sat down") == pytest.approx(2 * 2 / (3 + 4))
    assert written.rouge_l("", "") == 1


def test_long_prompts_are_cut_at_the_end_that_is_asked_for(folders: dict[str, Path]) -> None:
    encoder = Encoder.load(folders["llama"], config_of(folders["llama"]))
    for cut in ("left", "right"):
        kind = Generate._of(encoder, {"cut": cut, "template": "{input}"})
        (example,) = kind.taught(encoder, [{"prompt": "abcdefghij" * 4}], ["xyz"], 20)
        (row,) = example
        assert row.truncated
        assert len(row.ids) == 20
        text = encoder.text(row.ids[: row.at.start].tolist())
        assert text == ("abcdefghij" * 4)[-16:] if cut == "left" else ("abcdefghij" * 4)[:16]
        assert encoder.text(row.ids[row.at.start : -1].tolist()) == "xyz"


BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no tokens": (lambda b: b.predict("a", max_new_tokens=0), "max_new_tokens must be at least 1"),
    "no room": (lambda b: b.predict("a b c " * 10, max_new_tokens=90), "leaves no room for 90 more: the base takes 96"),
    "beams drawn": (lambda b: b.predict("a", beams=2, temperature=1.0), "beams are for the likeliest"),
    "top_p alone": (lambda b: b.predict("a", top_p=0.5), "give a temperature"),
    "one choice": (lambda b: b.predict("a", choices=["a"]), "at least two different"),
    "an empty stop": (lambda b: b.predict("a", stop=""), "is empty"),
    "a number": (lambda b: b.predict([3]), "takes texts or messages"),
    "min_score": (lambda b: b.predict("a", min_score=0.5), "no score to abstain"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_written_is_one_line(case: str, houlsby: Any) -> None:
    ask, message = BAD[case]
    with pytest.raises(UsageError, match=message) as error:
        ask(houlsby)
    assert "\n" not in str(error.value)


def test_bad_templates_and_bases_that_do_not_write_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    encoder = Encoder.load(folders["llama"], config_of(folders["llama"]))
    with pytest.raises(UsageError, match=r"has no \{input\}"):
        Generate._of(encoder, {"template": "say it:"})
    with pytest.raises(UsageError, match="no template of chats"):
        Generate._of(encoder, {"template": "chat"})
    with pytest.raises(BaseError, match=r"does not write any.*bases get smollm"):
        at.train(ROWS, base=tiny_base(tmp_path / "bert"), name="x")


def test_rows_without_an_output_are_left_out_and_counted(folders: dict[str, Path]) -> None:
    rows = [*ROWS, {"prompt": "say nothing", "completion": ""}]
    bound = at.train(rows, base=folders["llama"], name="x", method="lora:4", epochs=1)
    assert bound.task.record.data["rows"] == len(ROWS)
    nothing = [{"prompt": f"say {i}", "completion": ""} for i in range(20)]
    with pytest.raises(AdaptreeError):
        at.train(nothing, base=folders["llama"], name="x", method="lora:4")


def test_a_task_goes_through_the_commands(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, store = tmp_path / "rows.jsonl", str(tmp_path / "store")
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["train", str(data), "--base", str(folders["llama"]), "--name", "echo", "--method", "lora:4",
                 "--epochs", "1", "--store", store, "-q"]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["predict", "echo", "say ag", "--store", store, "--format", "jsonl", "--max-new-tokens", "5"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"text", "finished", "tokens"}
    assert main(["evaluate", "echo", str(data), "--store", store, "--format", "json", "--max-new-tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["test"]
    assert set(found) == {"perplexity", "accuracy", "exact_match", "rouge_l", "chrf", "bleu"}
    assert main(["show", "echo", "--store", store]) == 0
    assert main(["verify", "echo", "--store", store]) == 0
    assert main(["predict", "echo", "--file", str(data), "--store", store, "--max-new-tokens", "5"]) == 0


@pytest.fixture(scope="module")
def stored(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A store with a task, and the file that it learned from."""
    root = tmp_path_factory.mktemp("stored")
    data = root / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    at.train(ROWS, base=folders["llama"], name="echo", method="lora:4", epochs=1, max_length=32, store=root / "store")
    return str(root / "store"), data


def test_bad_inputs_are_said_in_one_line(
    stored: tuple[str, Path], folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, data = stored

    def said(*words: str) -> tuple[int, list[str]]:
        code = main([*words, "--store", store])
        return code, [line for line in capsys.readouterr().err.splitlines() if line.strip()]

    code, lines = said("predict", "echo", LONG, "--max-new-tokens", "5", "--stop", "~never~")
    assert code == 0
    assert lines == [
        "note: 1 texts are longer than 32 tokens and were truncated at the left: "
        "it was trained with that --max-length.",
        "note: 1 text was cut off before the end, without the text to stop at: --max-new-tokens",
    ]
    code, (line,) = said("predict", "echo", "a", "--int8")
    assert code == 2
    assert "int8 changes too many of the tokens that a task writes" in line
    code, (line,) = said("predict", "echo", "a", "--max-new-tokens", "200")
    assert code == 2
    assert "leaves no room for 200 more: the base takes 96" in line
    training = ["train", str(data), "--name", "x", "--method", "lora:2", "--max-steps", "1", "-q", "--base"]
    code, (line,) = said(*training, str(folders["llama"]), "--template", "no place")
    assert code == 2
    assert "has no {input}" in line
    code, (line,) = said(*training, str(tiny_base(tmp_path / "bert")))
    assert code == 1
    assert "reads texts and does not write any" in line
    empty = tmp_path / "empty.jsonl"
    empty.write_text("".join(json.dumps({**row, "completion": " "}) + "\n" for row in ROWS))
    code, lines = said("train", str(empty), *training[2:], str(folders["llama"]))
    assert code == 1
    assert len(lines) == 1
    assert "no row of 'empty.jsonl' has what kind generate needs in 'prompt', 'completion'" in lines[0]


def test_on_a_terminal_a_text_is_shown_as_it_is_written(
    stored: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = stored
    ask = ["predict", "echo", "say ag", "--max-new-tokens", "6", "--store", store]
    assert main([*ask, "--format", "jsonl"]) == 0
    wanted = json.loads(capsys.readouterr().out)["text"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(ask) == 0
    assert capsys.readouterr().out.endswith(f"{wanted}\n")


def test_prompts_that_were_cut_in_training_are_counted(folders: dict[str, Path]) -> None:
    rows = [*ROWS, {"prompt": LONG, "completion": "b"}]
    bound = at.train(rows, base=folders["llama"], name="x", method="lora:2", max_steps=1, max_length=24)
    assert bound.task.record.data["truncated"] == 1


def test_the_card_shows_what_is_written_beside_the_references(stored: tuple[str, Path]) -> None:
    from adaptree.reports import card

    store, _ = stored
    task = at.Store(store)["echo"]
    page = card.write(task.record)
    assert "What it writes" in page
    shown = task.record.extra["insight"]["written"]
    assert 1 <= len(shown) <= 3
    known = {row["prompt"]: row["completion"] for row in ROWS}
    assert all(known[row["prompt"]] == row["reference"] for row in shown)


@pytest.mark.slow
def test_methods_are_compared_by_the_perplexity_of_the_references(folders: dict[str, Path], tmp_path: Path) -> None:
    from adaptree.analysis.compare import compare

    found = compare(
        ROWS, methods=["lora:2", "full"], base=folders["llama"], out=tmp_path, epochs=(1,), seeds=1, test=ROWS[:4]
    )
    assert found["metric"] == "perplexity"
    assert [row["method"] for row in found["methods"]] == ["lora(rank=2)", "full"]
    assert all(row["scores"]["test"]["mean"] > 1 for row in found["methods"])
    assert "perplexity" in (tmp_path / "table.md").read_text()
