"""Labels as text: what is scored is the likelihood that transformers gives each label after the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, writing_base
from transformers import AutoModelForCausalLM, AutoTokenizer

import adaptree as at
from adaptree.cli import main
from adaptree.errors import AdaptreeError
from adaptree.models.opening import open_task

LABELS = ("good", "bad", "so so")
ROWS = [
    {"text": f"the {word} {i}", "label": label} for i in range(8) for word, label in zip("abc", LABELS, strict=True)
]
TEXTS = ["the a 3", "one that is much longer than the others were, by far", "c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing_base(tmp_path_factory.mktemp("as-text") / "base", chat=True)


def likelihood(model: Any, tokenizer: Any, prompt: str, label: str) -> float:
    """The log-likelihood of a label's tokens and the end after a prompt, by transformers alone."""
    start = tokenizer(prompt, add_special_tokens=False).input_ids
    output = [*tokenizer(label, add_special_tokens=False).input_ids, 2]
    with torch.no_grad():
        logits = model(torch.tensor([[*start, *output]])).logits[0].log_softmax(-1)
    return sum(float(logits[len(start) - 1 + i, token]) for i, token in enumerate(output))


@pytest.mark.parametrize(
    ("template", "ask"),
    [
        (None, "{}\nLabel:"),
        ("say how {input} is: ", "say how {} is: "),
        ("chat", "<s>user {}</s><s>assistant "),
    ],
    ids=["default", "own", "chat"],
)
def test_the_scores_are_transformers_likelihoods(template: str | None, ask: str, folder: Path) -> None:
    bound = at.train(
        ROWS, base=folder, name="x", method="full", lr=1e-3, epochs=1, as_text=True, template=template, baselines=False
    )
    assert bound.task.record.kind == "classify"
    assert bound.task.record.parameters["head"] == 0
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.load_state_dict(bound._copy.model.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    space = " " if template is None else ""
    temperature = bound.kind.temperature
    for text, said in zip(TEXTS, bound.predict(TEXTS), strict=True):
        found = [likelihood(model, tokenizer, ask.format(text), space + label) for label in bound.task.record.labels]
        wanted = (torch.tensor(found).double() / temperature).softmax(0).tolist()
        assert list(said.scores.values()) == pytest.approx(wanted, abs=1e-5)
        assert said.label == bound.task.record.labels[max(range(3), key=wanted.__getitem__)]


def test_a_task_learns_is_kept_and_says_its_template(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, store = tmp_path / "rows.jsonl", str(tmp_path / "store")
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["train", str(data), "--base", str(folder), "--name", "mood", "--method", "full", "--lr", "0.01",
                 "--epochs", "40", "--as-text", "--store", store, "-q"]) == 0  # fmt: skip
    opened = open_task(at.Store(store), "mood")
    assert opened.evaluate(ROWS)["metrics"]["test"]["accuracy"] > 0.9
    assert opened.task.record.extra["template"] == "{input}\nLabel:"
    alone = [opened.predict(text)[0] for text in TEXTS]
    assert opened.predict(TEXTS) == alone
    capsys.readouterr()
    assert main(["show", "mood", "--store", store]) == 0
    assert "read as text after" in capsys.readouterr().out
    assert main(["verify", "mood", "--store", store]) == 0
    assert main(["explain", "mood", TEXTS[0], "--store", store]) == 2
    assert "cannot be explained word by word" in capsys.readouterr().err


def test_pairs_are_read_one_after_the_other(folder: Path) -> None:
    rows = [{"text_a": f"a {i}", "text_b": f"b {i}", "label": "ab"[i % 2]} for i in range(20)]
    bound = at.train(rows, base=folder, name="x", method="lora:2", max_steps=1, as_text=True, baselines=False)
    (first, _) = bound.read([("one", "two")])[0]
    assert bound.base.encoder.text(first.ids.tolist()) == "one\ntwo\nabel: a", "these letters have no L"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a head": ({"method": "head"}, "need no head"),
    "tfidf": ({"method": "tfidf"}, "need no head"),
    "windows": ({"windows": True}, "--windows does not go with --as-text"),
    "pooling": ({"pooling": "mean"}, "--pooling does not go"),
    "contrastive": ({"objective": "contrastive"}, "--objective does not go"),
    "no place": ({"template": "say it"}, r"has no \{input\}"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_with_it_is_one_line(case: str, folder: Path) -> None:
    options, message = BAD[case]
    with pytest.raises(AdaptreeError, match=message) as error:
        at.train(ROWS, base=folder, name="x", as_text=True, **{"method": "lora:2", **options})
    assert "\n" not in str(error.value)


def test_other_kinds_other_bases_and_many_labels_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AdaptreeError, match="does not write any"):
        at.train(ROWS, base=tiny_base(tmp_path / "bert"), name="x", as_text=True, method="lora:2")
    numbers = [{"text": f"a {i}", "label": i / 7} for i in range(40)]
    with pytest.raises(AdaptreeError, match="--as-text is not for kind regress"):
        at.train(numbers, base=folder, name="x", as_text=True, method="lora:2")
    many = [{"text": f"a {i}", "label": f"l{i % 25}"} for i in range(100)]
    with pytest.raises(AdaptreeError, match="at most 20"):
        at.train(many, base=folder, name="x", as_text=True, method="lora:2")
    with pytest.raises(AdaptreeError, match="--template is not for kind classify"):
        at.train(ROWS, base=folder, name="x", template="{input}", method="lora:2")
