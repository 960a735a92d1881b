"""Multiple choice: every choice is a row, the best one is the answer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import FILLER, WORDS, tiny_base

import adaptree as at
from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.kinds.choose import Choose
from adaptree.models.forward import forward


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Which of the words is the fruit?"""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        right = rng.randrange(3)
        others = rng.choices([*WORDS["tool"].split(), *WORDS["beast"].split()], k=2)
        choices = [*others[:right], rng.choice(WORDS["fruit"].split()), *others[right:]]
        rows.append(
            {"question": " ".join(rng.choices(FILLER, k=rng.randint(1, 9))), "choices": choices, "label": right}
        )
    return rows


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("choose") / "base"))


@pytest.fixture(scope="module")
def bound(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = tmp_path_factory.mktemp("store")
    return at.train(questions(200), base=base, method="houlsby:16", epochs=6, lr=1e-2, store=store, name="fruit")


def test_the_right_choice_is_learned_and_told_with_its_probability(bound: Any) -> None:
    assert bound.task.record.kind == "choose"
    assert bound.task.record.metrics["validation"]["accuracy"] > 0.9
    answer = bound.predict([{"text": "the old", "choices": ["saw", "lion", "plum", "drill"]}])[0].to_dict()
    assert answer["choice"] == "plum"
    assert answer["number"] == 2
    assert sum(answer["scores"]) == pytest.approx(1)
    assert answer["score"] == max(answer["scores"])


def test_a_choice_goes_where_the_text_leaves_room_for_it(base: Any) -> None:
    kind = Choose()
    [[first, second]] = kind.examples(base.encoder, [{"text": "the _ there", "choices": ["lion", "wolf"]}], 32)
    (filled,) = base.encoder.encode(["the lion there"], 32)
    assert first.ids.tolist() == filled.ids.tolist()
    assert second.ids.tolist() != first.ids.tolist()
    [[beside, _]] = kind.examples(base.encoder, [{"text": "the _ or _ there", "choices": ["lion", "wolf"]}], 32)
    (pair,) = base.encoder.encode([("the _ or _ there", "lion")], 32)
    assert beside.ids.tolist() == pair.ids.tolist()


def test_the_loss_is_the_cross_entropy_over_the_choices_of_each_question() -> None:
    kind, row = Choose(), torch.tensor([[1.0], [2.0], [0.5], [0.1], [3.0]])
    examples: Any = [[0, 0], [0, 0, 0]]
    expected = torch.stack([-row[:2, 0].log_softmax(0)[1], -row[2:, 0].log_softmax(0)[0]])
    torch.testing.assert_close(kind.loss(row, examples, [1, 0]), expected)
    assert kind.decode(row, examples) == [1, 2]


def test_bits_do_not_depend_on_the_batch_and_choices_may_be_of_many_lengths(bound: Any) -> None:
    rng = random.Random(5)
    inputs = [
        {
            "text": " ".join(rng.choices(FILLER, k=k)),
            "choices": [" ".join(rng.choices(FILLER, k=c)) for c in (1, 9, 30)],
        }
        for k in (1, 5, 20)
    ]
    together = bound.logits(inputs)
    alone = torch.cat([bound.logits([given]) for given in inputs])
    assert torch.equal(together, alone)


def test_a_training_step_sees_what_prediction_sees(base: Any, bound: Any) -> None:
    inputs = [{"text": "the old", "choices": ["saw", "the big lion and the wolf seen there today with the"]}]
    examples = bound.kind.examples(base.encoder, inputs, 64)
    v = {name: tensor.clone().requires_grad_() for name, tensor in bound.task.weights.items()}
    out = forward(base, examples, bound.kind, v, bound.task.record.pooling, batch_size=2)
    assert isinstance(out, torch.Tensor)
    assert out.requires_grad
    assert out.shape == (2, 1)


def test_a_context_is_encoded_and_when_it_is_long_it_is_cut_and_not_the_question(base: Any) -> None:
    given = {"text": "the old", "context": "near the big bear", "choices": ["lion", "wolf"]}
    [[first, second]] = Choose().examples(base.encoder, [given], 32)
    (pair, other) = base.encoder.encode([(given["context"], "the old lion"), (given["context"], "the old wolf")], 32)
    assert (first.ids.tolist(), second.ids.tolist()) == (pair.ids.tolist(), other.ids.tolist())
    [[gap, _]] = Choose().examples(base.encoder, [{**given, "text": "the _ there"}], 32)
    assert gap.ids.tolist() == base.encoder.encode([(given["context"], "the lion there")], 32)[0].ids.tolist()
    [[cut, _]] = Choose().examples(base.encoder, [{**given, "context": "near the big bear " * 20}], 16)
    assert cut.truncated
    assert cut.ids.tolist()[-4:] == pair.ids.tolist()[-4:]  # the question, the choice, and the end


def test_what_is_only_in_the_context_is_learned(base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    words = [word for of in WORDS.values() for word in of.split()]
    rows = []
    for i in range(240):
        a, b = rng.sample(words, 2)
        rows.append(
            {"story": f"{(a, b)[i % 2]} {FILLER[i % 9]}", "question": "seen", "A": a, "B": b, "correct": "AB"[i % 2]}
        )
    store = tmp_path / "store"
    bound = at.train(rows, base=base, method="full", epochs=12, lr=3e-3, store=store, name="story", patience=12)
    assert bound.task.record.columns["context"] == "story"
    assert bound.task.record.metrics["validation"]["accuracy"] > 0.8
    asked = ["predict", "story", "--store", str(store), "--base", base.location, "--format", "json"]
    assert main([*asked, "seen\tthe lion\tsaw\tlion"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["choice"] in ("saw", "lion")
    assert main([*asked, "seen\tsaw\tlion"]) == 2
    assert "a text, its context and two choices" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["a text", {"text": "a"}, {"text": "a", "choices": ["b"]}, ("a", "b")])
def test_what_is_no_question_is_refused(bound: Any, given: Any) -> None:
    with pytest.raises(UsageError, match="takes a text and its choices"):
        bound.predict([given])


def test_the_command_line_takes_tabs_and_files(
    base: Any, bound: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at.Store(tmp_path / "store").add(bound.task)
    common = ["--store", str(tmp_path / "store"), "--base", base.location]
    assert main(["predict", "fruit", "the old\tsaw\tplum", "--format", "json", *common]) == 0
    assert json.loads(capsys.readouterr().out)[0]["choice"] == "plum"
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions(20, seed=4)))
    assert main(["evaluate", "fruit", str(path), "--format", "json", *common]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["test"]["accuracy"] > 0.8
    assert main(["predict", "fruit", "--file", str(path), "--format", "jsonl", *common]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert main(["predict", "fruit", "no choices", *common]) == 2
    assert "separated by tabs" in capsys.readouterr().err
