"""Extractive question answering: windows, loss, the answer that is read from the head's numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bases import FILLER, WORDS, tiny_base
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from adaptree.data.encode import Encoder
from adaptree.errors import UsageError
from adaptree.kinds import answer as module
from adaptree.kinds.answer import Answer, AnswerPrediction, choose_threshold
from adaptree.kinds.kind import Example
from adaptree.methods import parse
from adaptree.models.base import Base
from adaptree.models.embedded import config_of, locate
from adaptree.models.forward import forward, infer
from adaptree.models.hooks import HookedModel, share
from adaptree.models.loading import load_base

RECORD: Any = SimpleNamespace(name="faq", columns={"question": "question", "context": "passage"})


def word_encoder(*, special: bool = True, types: bool = True) -> Encoder:
    """Words are pieces; with BERT's special tokens, or with none at all."""
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    return Encoder(tokenizer, pad_id=0, types=types)


def byte_encoder() -> Encoder:
    """Bytes are pieces, a space is one too, and there are no special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Encoder(tokenizer, pad_id=0, types=False)


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    folder = locate("minilm")
    return Encoder.load(folder, config_of(folder))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base")))


def asked(question: str, context: str) -> dict[str, str]:
    return {"question": question, "context": context}


def gold(context: str, *texts: str) -> dict[str, Any]:
    return {"answers": [{"text": text, "start": context.index(text)} for text in texts], "id": None}


def numbered(count: int) -> str:
    return " ".join(f"w{i}" for i in range(count))


def noise(examples: Sequence[Example], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(row.ids), 2, generator=generator) for example in examples for row in example]


def pointing(examples: Sequence[Example], targets: Sequence[Any]) -> list[torch.Tensor]:
    """What a head says that knows the answer in every window, and where there is none."""
    out = []
    for example, right in zip(examples, targets, strict=True):
        for row in example:
            window, x = row.at, torch.zeros(len(row.ids), 2)
            pieces = window.passage.pieces(right)
            if window.holds(pieces):
                x[window.first + pieces[0] - window.begin, 0] = 9
                x[window.first + pieces[1] - window.begin, 1] = 9
            else:
                x[0] = 9
            out.append(x)
    return out


# Windows


def test_a_short_context_is_one_row_as_the_tokenizer_pairs_it(minilm: Encoder) -> None:
    given = asked("Who won?", "The Denver Broncos won in San José.")
    ((row,),) = Answer().examples(minilm, [given], 64)
    (theirs,) = minilm.encode([(given["question"], given["context"])], 64)
    assert row.ids.tolist() == theirs.ids.tolist()
    assert row.types is not None
    assert theirs.types is not None
    assert row.types.tolist() == theirs.types.tolist()
    assert not row.truncated
    parts = [given["context"][a:b] for a, b in row.at.passage.spans]
    assert parts == ["The", "Denver", "Broncos", "won", "in", "San", "José", "."]
    assert row.at.first == 5


@given(
    pieces=st.integers(0, 80),
    question=st.integers(0, 30),
    max_length=st.integers(5, 60),
    longest=st.integers(1, 12),
    special=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150)
def test_windows_cover_the_context_and_every_answer_that_fits_is_reachable(
    pieces: int, question: int, max_length: int, longest: int, special: bool, data: st.DataObject
) -> None:
    encoder, kind = word_encoder(special=special), Answer(longest=longest)
    context = numbered(pieces)
    (example,) = kind.examples(encoder, [asked(numbered(question), context)], max_length)
    windows = [row.at for row in example]
    assert all(len(row.ids) <= max_length for row in example)
    assert {i for w in windows for i in range(w.begin, w.end)} == set(range(pieces))
    assert all(w.first >= 1 for w in windows)  # "no answer" has a position of its own
    assert any(w.end - w.begin == pieces for w in windows) == (len(windows) == 1)
    for row in example:
        ids = row.ids[row.at.first : row.at.first + row.at.end - row.at.begin]
        assert len(ids) == row.at.end - row.at.begin
        assert (ids == 1).all()  # the context's words, no special token
    size = max(w.end - w.begin for w in windows)
    spans = [(start, end) for start in range(pieces) for end in range(start, min(start + longest, pieces))]
    fitting = [span for span in spans if any(w.holds(span) for w in windows)]
    for start, end in set(spans) - set(fitting):
        assert end - start >= size - max(1, size // 3)  # only little room leaves an answer out
    for start, end in data.draw(st.lists(st.sampled_from(fitting), max_size=8)) if fitting else []:
        text = " ".join(context.split()[start : end + 1])
        assert kind.decode(pointing([example], [gold(context, text)]), [example]) == [text]


@pytest.mark.parametrize("count", [100, 400, 777, 1000])
def test_of_answers_of_one_piece_the_window_is_the_one_that_bert_takes(count: int) -> None:
    """Devlin's _check_is_max_context: min(left, right) + 0.01 * length, and the first among equals."""
    (example,) = Answer().examples(word_encoder(), [asked("w", numbered(count))], 400)
    windows = [(row.at.begin, row.at.end - row.at.begin) for row in example]
    for i in range(len(example)):
        most = module._most_context(example, i, 3)
        for piece in range(example[i].at.begin, example[i].at.end):
            scores = [
                min(piece - begin, begin + length - 1 - piece) + 0.01 * length
                if begin <= piece < begin + length else -1.0
                for begin, length in windows
            ]  # fmt: skip
            best = next(j for j, score in enumerate(scores) if score > max(scores) - 1e-9)
            assert most[piece - example[i].at.begin, 0] == (best == i)


def test_white_space_is_no_part_of_a_piece() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # " old" with its space
    (example,) = Answer().examples(Encoder(tokenizer, pad_id=0, types=False), [asked("w", "an old\n  lion ")], 40)
    spans = example[0].at.passage.spans.tolist()
    assert [span for span in spans if span[0] < span[1]] == [[0, 2], [3, 6], [9, 13]]


def test_an_answer_is_the_pieces_that_it_touches() -> None:
    context = "see (lions, 1990s) now"
    (example,) = Answer().examples(word_encoder(), [asked("w", context)], 40)
    passage = example[0].at.passage  # see ( lions , 1990s ) now
    assert passage.pieces(gold(context, "lions")) == (2, 2)
    assert passage.pieces(gold(context, "(lions, 1990s)")) == (1, 5)
    assert passage.pieces(gold(context, "lion")) == (2, 2)
    assert passage.pieces(gold(context, "1990", "see")) == (4, 4)
    assert passage.pieces(gold(context)) is None


def test_a_long_question_is_cut_at_its_end_and_leaves_half_of_the_room() -> None:
    (example,) = Answer().examples(word_encoder(), [asked(numbered(100), numbered(50))], 23)
    assert all(row.truncated for row in example)
    assert example[0].at.first == 1 + 10 + 1
    assert example[0].at.end == 10
    (example,) = Answer().examples(word_encoder(), [asked("w", numbered(50))], 23)
    assert not any(row.truncated for row in example)


def test_too_little_room_is_refused() -> None:
    with pytest.raises(UsageError, match="3 tokens have no room") as caught:
        Answer().examples(word_encoder(), [asked("a", "b")], 3)
    assert "--max-length" in caught.value.hint
    (example,) = Answer().examples(word_encoder(), [asked("a b c", "d e")], 4)
    assert [len(row.ids) for row in example] == [4, 4]


@pytest.mark.parametrize("encoder", [word_encoder(special=False, types=False), byte_encoder()])
def test_tokenizers_without_special_tokens_have_a_position_for_no_answer(encoder: Encoder) -> None:
    for question in ("", " ", "who"):
        (example,) = Answer().examples(encoder, [asked(question, "an old lion")], 40)
        assert example[0].types is None
        assert example[0].at.first >= 1
        assert len(example[0].ids) == example[0].at.first + example[0].at.end


def test_one_context_is_read_once_for_all_its_questions(minilm: Encoder) -> None:
    examples = Answer().examples(minilm, [asked(f"Question {i}?", numbered(200)) for i in range(5)], 64)
    assert len({id(row.at.passage) for example in examples for row in example}) == 1


def test_a_context_beyond_all_bounds_is_cut_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WINDOWS", 5)
    (example,) = Answer(longest=3).examples(word_encoder(), [asked("w", numbered(500))], 24)
    assert len(example) == 5
    assert all(row.truncated for row in example)


# Odd texts


ODD = {
    "empty": "", "white space": " \t\n ", "emoji": "😀👩‍👩‍👧🇫🇷" * 9, "right to left": "שלום עולם كيف حالك",
    "null bytes": "a\0b \0\0", "half a surrogate": "x \ud800 y", "combining": "e\u0301 ﬁ ½ ǆ",
    "long word": "x" * 300_000,
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("encode", ["minilm", "words", "bytes"])
def test_odd_texts_have_a_defined_answer(text: str, encode: str, minilm: Encoder) -> None:
    if encode == "bytes":
        text = text[:2000]
    encoder = {"minilm": minilm, "words": word_encoder(), "bytes": byte_encoder()}[encode]
    kind = Answer(impossible=False)
    inputs = [asked(text, "an old lion"), asked("what?", text), asked(text, text)]
    examples = kind.examples(encoder, inputs, 64)
    found = kind.predictions(noise(examples), examples, inputs, None)
    assert [each.answer for each in found] == kind.decode(noise(examples), examples)
    for each, about in zip(found, inputs, strict=True):
        assert (each.start is None) == (each.answer == "")
        if each.start is not None:
            assert each.answer == about["context"][each.start : each.end]
            assert each.answer == each.answer.strip()
    loss = kind.loss(noise(examples), examples, [{"answers": []}] * 3)
    assert torch.isfinite(loss).all()


def test_a_document_of_100_000_words(minilm: Encoder) -> None:
    words = random.Random(0).choices(FILLER, k=100_000)
    words[77_777] = "lion"
    given = asked("what beast?", " ".join(words))
    (example,) = Answer().examples(minilm, [given], 256)
    assert not example[0].truncated
    out = pointing([example], [gold(given["context"], "lion")])
    assert Answer().decode(out, [example]) == ["lion"]
    few = Answer().for_training(example, gold(given["context"], "lion"))
    assert len(few) == module.TRAINED_WINDOWS


# Loss


def test_the_loss_is_the_cross_entropy_of_start_and_end_over_the_context_and_no_answer() -> None:
    context = numbered(9)
    given, right = asked("w w", context), gold(context, "w3 w4", "w8")
    examples = Answer().examples(word_encoder(), [given], 30)
    (x,) = noise(examples)
    by_hand = x.double().numpy().copy()
    by_hand[1:4] = -np.inf  # the question and what is between
    by_hand[-1] = -np.inf
    shares = np.exp(by_hand) / np.exp(by_hand).sum(axis=0)
    expected = -(np.log(shares[4 + 3, 0]) + np.log(shares[4 + 4, 1])) / 2
    assert Answer().loss([x], examples, [right]).tolist() == pytest.approx([expected], rel=1e-5)
    expected = -np.log(shares[0]).mean()
    assert Answer().loss([x], examples, [gold(context)]).tolist() == pytest.approx([expected], rel=1e-5)


def test_the_loss_of_an_input_is_the_mean_over_its_windows_and_is_its_own() -> None:
    contexts = [numbered(40), numbered(5), ""]
    kind, targets = Answer(longest=4), [gold(contexts[0], "w20"), gold(contexts[1]), gold("")]
    examples = kind.examples(word_encoder(), [asked("w", text) for text in contexts], 20)
    assert [len(example) for example in examples] == [4, 1, 1]
    out = noise(examples)
    together = kind.loss(out, examples, targets)
    alone = [kind.loss([x], [[row]], [targets[0]]) for x, row in zip(out, examples[0], strict=False)]
    assert together[0] == torch.cat(alone).mean()
    assert torch.equal(together[1:2], kind.loss(out[4:5], examples[1:2], targets[1:2]))
    assert together[2] == 0
    assert kind.loss([], [], []).shape == (0,)


def test_training_takes_the_windows_with_the_answer_and_a_few_without() -> None:
    context = numbered(300)
    kind, right = Answer(longest=4), gold(context, "w150 w151")
    examples = kind.examples(word_encoder(), [asked("w", context), asked("w", numbered(5))], 24)
    assert len(examples[0]) > 10
    assert kind.for_training(examples[1], gold("")) is examples[1]
    few = kind.for_training(examples[0], right)
    pieces = few[0].at.passage.pieces(right)
    holding = [row for row in examples[0] if row.at.holds(pieces)]
    assert holding
    assert all(any(row is kept for kept in few) for row in holding)
    assert len(few) == module.TRAINED_WINDOWS > len(holding)
    none = kind.for_training(examples[0], gold(context))
    assert len(none) == module.TRAINED_WINDOWS
    assert torch.isfinite(kind.loss(noise([few, none]), [few, none], [right, gold(context)])).all()


# Answers


def slowly(kind: Answer, example: Example, out: Sequence[torch.Tensor]) -> tuple[tuple[float, int, int] | None, float]:
    """The best answer by trying all of them in all windows."""
    best: tuple[float, int, int] | None = None
    passage = example[0].at.passage
    for start in range(len(passage.spans)):
        for end in range(start, min(start + kind.longest, len(passage.spans))):
            if not all(passage.text[slice(*passage.spans[i])].strip() for i in (start, end)):
                continue
            most, score = -1.0, 0.0
            for row, x in zip(example, out, strict=True):
                left, right = start - row.at.begin, row.at.end - 1 - end
                context = min(left, right) + 0.01 * (row.at.end - row.at.begin)
                if left >= 0 and right >= 0 and context > most + 1e-9:
                    most = context
                    at = row.at.first - row.at.begin
                    score = float(x[at + start, 0].double() + x[at + end, 1].double())
            if most >= 0 and (best is None or score > best[0]):
                best = score, start, end
    return best, min(float(x[0, 0].double() + x[0, 1].double()) for x in out)


@given(
    st.integers(0, 2**31), st.integers(0, 45), st.integers(1, 8), st.integers(9, 40), st.booleans(), st.floats(-2, 2)
)
@settings(max_examples=80)
def test_the_answer_is_that_of_trying_all(
    seed: int, count: int, longest: int, max_length: int, ties: bool, threshold: float
) -> None:
    kind = Answer(longest=longest, impossible=True, threshold=threshold)
    text = "".join(random.Random(seed).choices(["w", "é", " ", "  ", "\n", "😀"], k=count))
    for encoder in (word_encoder(), byte_encoder()):
        examples = kind.examples(encoder, [asked("who", text)], max_length)
        out = [x.round() for x in noise(examples, seed)] if ties else noise(examples, seed)
        best, none = slowly(kind, examples[0], out)
        if best is None or none - best[0] > threshold:
            assert kind.decode(out, examples) == [""]
        else:
            spans = examples[0][0].at.passage.spans
            (found,) = kind.predictions(out, examples, [], None)
            if not ties or encoder.types:  # bytes of one letter may be equal
                assert (found.start, found.end) == (spans[best[1], 0], spans[best[2], 1])
            assert kind.decode(out, examples) == [text[spans[best[1], 0] : spans[best[2], 1]]]


def test_scores_are_a_softmax_over_the_best_and_none() -> None:
    context = "the old lion saw a new wolf"
    kind = Answer(impossible=True, n_best=4)
    inputs = [asked("who", context)]
    examples = kind.examples(word_encoder(), inputs, 40)
    (found,) = kind.predictions(noise(examples), examples, inputs, None)
    assert len(found.n_best) == 5
    assert sum(span.score for span in found.n_best) == pytest.approx(1)
    assert [span.score for span in found.n_best] == sorted((span.score for span in found.n_best), reverse=True)
    assert len({span.answer for span in found.n_best}) == 5
    assert [(span.start, span.end) for span in found.n_best if span.answer == ""] == [(None, None)]
    for span in found.n_best:
        if span.start is not None:
            assert span.answer == context[span.start : span.end]
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert list(told) == ["answer", "score", "start", "end", "n_best"]
    assert list(told["n_best"][0]) == ["answer", "score", "start", "end"]
    assert found.columns() == {"prediction": found.answer, "score": found.score}


def test_none_is_an_answer_only_where_questions_may_have_none() -> None:
    context = "the old lion"
    examples = Answer().examples(word_encoder(), [asked("who", context)], 40)
    out = [torch.zeros(len(examples[0][0].ids), 2)]
    out[0][0] = 3  # none is better by 6
    assert Answer(impossible=False).decode(out, examples) == ["the"]
    assert Answer(impossible=True).decode(out, examples) == [""]
    assert Answer(impossible=True, threshold=6.5).decode(out, examples) == ["the"]
    assert Answer(impossible=True, threshold=5.5).decode(out, examples) == [""]


def test_what_is_not_sure_enough_is_left_out() -> None:
    context = "the old lion"
    examples = Answer().examples(word_encoder(), [asked("who", context)], 40)
    out = pointing(examples, [gold(context, "lion")])
    (sure,) = Answer().predictions(out, examples, [], 0.5)
    (unsure,) = Answer().predictions(out, examples, [], 1.0)
    assert (sure.answer, sure.start, sure.end) == ("lion", 8, 12)
    assert (unsure.answer, unsure.start, unsure.end, unsure.score) == ("", None, None, sure.score)
    assert isinstance(unsure, AnswerPrediction)
    assert unsure.n_best[0].answer == "lion"


def test_changed_counts_other_answers() -> None:
    contexts = [numbered(9), numbered(5), ""]
    examples = Answer().examples(word_encoder(), [asked("w", text) for text in contexts], 40)
    exact = pointing(examples, [gold(contexts[0], "w3"), gold(contexts[1], "w1"), gold("")])
    other = pointing(examples, [gold(contexts[0], "w4"), gold(contexts[1], "w1"), gold("")])
    assert Answer().changed(exact, exact, examples) == 0
    assert Answer().changed(exact, other, examples) == 1


def test_the_threshold_is_the_one_with_the_best_f1() -> None:
    rng = np.random.default_rng(0)
    context = "the old lion saw"
    kind = Answer(impossible=True)
    targets = [gold(context, "lion") if i % 2 else gold(context) for i in range(40)]
    examples = kind.examples(word_encoder(), [asked("w", context)] * 40, 40)
    out = pointing(examples, [gold(context, "lion")] * 40)
    for i, x in enumerate(out):
        x[0] = float(rng.normal(8 if i % 2 else 11, 2))
    found = choose_threshold(kind, out, examples, targets)
    assert kind.calibrated(out, examples, targets) == replace(kind, threshold=found)
    scores = {t: replace(kind, threshold=t).score(targets, replace(kind, threshold=t).decode(out, examples))["f1"]
              for t in [found, *np.linspace(-20, 20, 101).tolist()]}  # fmt: skip
    assert scores[found] == max(scores.values())
    assert scores[found] > scores[0.0]
    assert replace(kind, impossible=False).calibrated(out, examples, targets).threshold == 0.0
    assert choose_threshold(kind, out, examples, [gold(context)] * 40) < min(float(x[0].sum()) for x in out) - 18
    wrong = [gold("wolf", "wolf")] * 40  # whatever is answered
    margins = sorted(2 * float(x[0, 0]) - 18 for x in out)
    nearest = min([(a + b) / 2 for a, b in pairwise(margins)], key=abs)
    assert choose_threshold(kind, out, examples, wrong) == pytest.approx(nearest)
    assert choose_threshold(kind, [], [], []) == 0.0


# What a user gives, and what is kept


@pytest.mark.parametrize(
    "inputs",
    [
        {"question": "q", "context": "c"},
        {"question": "q", "passage": "c", "id": 3},
        ("q", "c"),
        [("q", "c")],
        [["q", "c"]],
        [{"question": "q", "context": "c"}],
        iter([("q", "c")]),
    ],
)
def test_a_question_and_a_context_are_taken_in_every_form(inputs: Any) -> None:
    assert Answer().inputs(inputs, RECORD) == [{"question": "q", "context": "c"}]


@pytest.mark.parametrize("inputs", ["who?", ["who?"], ["q", "c"], [("q",)], [("q", 3)], [{"question": "q"}], [5]])
def test_anything_else_is_refused_with_a_hint(inputs: Any) -> None:
    with pytest.raises(UsageError, match="the task 'faq' takes a question and a context") as caught:
        Answer().inputs(inputs, RECORD)
    assert '{"question": "…", "context": "…"}' in caught.value.hint


def test_a_line_is_a_question_and_a_context_with_a_tab_between() -> None:
    assert Answer().line("who?\tan old\tlion", RECORD) == {"question": "who?", "context": "an old\tlion"}
    with pytest.raises(UsageError, match="separate them with a tab"):
        Answer().line("who?", RECORD)


def test_a_record_gives_the_kind_back() -> None:
    kind = Answer(impossible=True, threshold=-1.25, longest=12)
    assert Answer(**json.loads(json.dumps(kind.extra()))) == kind


# On a base


def toy(count: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """The beast in the text is the answer; a fifth of the texts have none."""
    rng = random.Random(seed)
    inputs, targets = [], []
    for i in range(count):
        words = rng.choices(FILLER + WORDS["fruit"].split(), k=rng.randint(3, 60))
        beast = rng.choice(WORDS["beast"].split())
        if i % 5:
            words.insert(rng.randint(0, len(words)), beast)
        context = " ".join(words)
        inputs.append(asked("the big", context))
        targets.append(gold(context, beast) if i % 5 else gold(context))
    return inputs, targets


@pytest.mark.slow
def test_a_tiny_base_learns_to_point_at_the_beast(base: Base) -> None:
    kind, method = Answer(impossible=True, longest=5), parse("houlsby:16")
    inputs, targets = toy(160, 0)
    examples = kind.examples(base.encoder, inputs, 32)
    assert max(map(len, examples)) > 2
    hooked = HookedModel(share(base.hooked.model), base.hooked.architecture)
    generator = torch.Generator().manual_seed(0)
    born = method.init(hooked.sites, hooked.backbone, generator) | kind.init(base.width, generator)
    v = {name: p.clone().requires_grad_() for name, p in born.items()}
    hooked.bind(method.plan(hooked.sites, v))
    optimiser = torch.optim.Adam(v.values(), lr=0.005)
    for step in range(90):
        here = slice(16 * (step % 10), 16 * (step % 10) + 16)
        some = [kind.for_training(*each) for each in zip(examples[here], targets[here], strict=True)]
        out = forward(base, some, kind, v, "first", batch_size=64, hooked=hooked)
        kind.loss(out, some, targets[here]).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    inputs, targets = toy(60, 1)
    examples = kind.examples(base.encoder, inputs, 32)
    after = infer(base, examples, kind, v, None, "first", hooked=hooked)
    assert kind.score(targets, kind.decode(after, examples))["f1"] > 0.8
    before = infer(base, examples, kind, born, {}, "first")
    assert kind.score(targets, kind.decode(before, examples))["f1"] < 0.4


def test_the_bits_of_an_input_do_not_depend_on_its_batch(base: Base) -> None:
    kind = Answer(longest=5)
    inputs, targets = toy(30, 2)
    examples = kind.examples(base.encoder, inputs, 32)
    v = kind.init(base.width, torch.Generator().manual_seed(3))
    together = infer(base, examples, kind, v, {}, "first")
    losses = kind.loss(together, examples, targets)
    at = 0
    for i, example in enumerate(examples):
        alone = infer(base, [example], kind, v, {}, "first", batch_size=1)
        assert all(torch.equal(a, b) for a, b in zip(alone, together[at : at + len(example)], strict=True))
        assert torch.equal(kind.loss(alone, [example], targets[i : i + 1])[0], losses[i])
        at += len(example)


def test_a_long_context_gives_two_numbers_a_token(base: Base) -> None:
    kind = Answer()
    given = asked("the big", " ".join(random.Random(0).choices(FILLER, k=20_000)))
    (example,) = kind.examples(base.encoder, [given], 64)
    v = kind.init(base.width, torch.Generator().manual_seed(3))
    out = infer(base, [example], kind, v, {}, "first", batch_size=16)
    assert [tuple(x.shape) for x in out] == [(len(row.ids), 2) for row in example]
    (found,) = kind.predictions(out, [example], [given], None)
    assert found.answer == given["context"][found.start : found.end]
