"""What every method must obey where a base writes: learn from an output, leave the base alone, be kept, be born mute.

On every architecture of the table that has a language model: causal ones, and encoder-decoders.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree.data.decoding import Decoding
from adaptree.errors import AdaptreeError, MethodError
from adaptree.methods import METHODS
from adaptree.models.fingerprint import fingerprint
from adaptree.models.forward import infer
from adaptree.models.generation import write
from tests.bases import writing_base
from tests.laws.ground import INSIDE, REFUSED, small

ROWS = [{"prompt": f"say {a}{b}", "completion": f"{b}{a} {a}"} for a in "abcd" for b in "gh"]
PROMPTS = ["say ag", "tell me about the old lion near the river", "a"]
BASES = ("llama", "t5", "gpt2", "bart", "mistral", "qwen2", "qwen3")
FIRST, OFTEN = ("llama", "t5", "gpt2"), ("houlsby", "lora", "full", "ia3", "lt_sft", "norms")
"""The architectures and methods of `make test`; the others are slow tests."""
WRITING = [name for name in INSIDE if name != "head"]


def refused(architecture: str, method: str) -> bool:
    case = "t5-generator" if architecture == "t5" else architecture
    return case in REFUSED.get(method, {})


PAIRS = [
    pytest.param(name, method, marks=[] if name in FIRST and method in OFTEN else [pytest.mark.slow])
    for name in BASES
    for method in WRITING
    if not refused(name, method)
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("bases")
    return {name: at.load_base(writing_base(root / name, architecture=name), writes=True) for name in BASES}


def train(base: Any, method: Any, **more: Any) -> Any:
    options = {"max_steps": 2, "epochs": 2, "lr": 3e-2, **more}
    return at.train(ROWS, base=base, name="x", method=method, baselines=False, **options)


def bare(base: Any, kind: Any) -> tuple[list[str], float]:
    """What the base itself writes, and its perplexity of the rows."""
    inputs = [{"prompt": prompt} for prompt in PROMPTS]
    rows = [row for (row,) in kind.examples(base.encoder, inputs, 64)]
    said = [each.text for each in write(base, rows, Decoding(max_new_tokens=6), plan={})]
    asked = [{"prompt": row["prompt"]} for row in ROWS]
    examples = kind.taught(base.encoder, asked, [row["completion"] for row in ROWS], 64)
    answers = kind.decode(infer(base, examples, kind, {}, {}, ""), examples)
    return said, kind.score(None, answers)["perplexity"]


def texts(bound: Any) -> list[str]:
    return [each.text for each in bound.predict(PROMPTS, max_new_tokens=6)]


@pytest.mark.filterwarnings("ignore:.* is larger than the width 32")
@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_a_method_learns_is_kept_and_leaves_the_base_as_it_was(
    name: str, method: str, bases: dict[str, Any], tmp_path: Path
) -> None:
    base = bases[name]
    bits = {key: t.clone() for key, t in base.hooked.model.state_dict().items()}
    bound = train(base, small(method))
    said, perplexity = bare(base, bound.kind)
    own = bound.evaluate(ROWS)["metrics"]["test"]["perplexity"]
    assert own != pytest.approx(perplexity, rel=1e-6), "it has learned something"
    assert bound.task.record.parameters["head"] == 0
    after = base.hooked.model.state_dict()
    assert after.keys() == bits.keys()
    assert all(torch.equal(t, after[key]) for key, t in bits.items())
    assert fingerprint(base.hooked.backbone) == base.fingerprint
    store = at.Store(tmp_path / "store")
    store.add(bound.task)
    again = at.load_base(base.location, writes=True).bind(store["x"])
    assert texts(again) == texts(bound)
    assert again.evaluate(ROWS)["metrics"]["test"]["perplexity"] == own
    assert bare(base, bound.kind)[0] == said


@pytest.mark.filterwarnings("ignore:.* is larger than the width 32")
@pytest.mark.parametrize(("name", "method"), [pair for pair in PAIRS if "diff_pruning" not in str(pair.values)])
def test_a_task_that_has_learned_nothing_writes_what_the_base_writes(
    name: str, method: str, bases: dict[str, Any]
) -> None:
    scaled = "init_std" in {field.name for field in fields(METHODS[method])}
    born = train(bases[name], small(method, **({"init_std": 0.0} if scaled else {})), lr=1e-30, weight_decay=0.0)
    said, perplexity = bare(bases[name], born.kind)
    assert texts(born) == said
    assert born.evaluate(ROWS)["metrics"]["test"]["perplexity"] == pytest.approx(perplexity, rel=1e-6)


@pytest.mark.parametrize("name", BASES)
def test_a_method_without_a_place_says_why(name: str, bases: dict[str, Any]) -> None:
    none = [method for method in WRITING if refused(name, method)]
    assert none
    for method in none:
        with pytest.raises(MethodError) as error:
            train(bases[name], small(method))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["head", "tfidf"])
def test_there_is_no_head_to_train_alone(method: str, bases: dict[str, Any]) -> None:
    with pytest.raises(AdaptreeError, match=r"no head to train|one label or one number") as error:
        train(bases["llama"], method)
    assert "\n" not in str(error.value)
