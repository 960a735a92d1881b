"""Tags: read in any scheme, aligned with word pieces in windows, decoded as valid sequences, learned."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.bases import FILLER, WORDS, tiny_base

import adaptree as at
from adaptree.data.encode import Encoder
from adaptree.errors import DataError, UsageError
from adaptree.kinds.iob import PLAIN, entities, scheme_of, to_iob2
from adaptree.kinds.kind import MOST_ROWS
from adaptree.kinds.tag import Tag, TagForm, decode, owned, windows, words_of
from adaptree.methods import parse
from adaptree.models.forward import forward, infer
from adaptree.models.hooks import HookedModel, share

RECORD: Any = SimpleNamespace(name="names")
LABELS = ("O", "B-A", "I-A", "B-B", "I-B")
SENTENCES = st.lists(st.tuples(st.sampled_from(["", "A", "B-x"]), st.integers(1, 3)), max_size=8)


def valid(runs: list[tuple[str, int]]) -> list[str]:
    """A valid IOB2 sequence of runs, each a label (none: outside) and a length."""
    return [f"{'I' if i else 'B'}-{label}" if label else "O" for label, size in runs for i in range(size)]


def given_of(words: list[str]) -> dict[str, Any]:
    return {"tokens": words, "text": None, "offsets": None}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def bytelevel() -> Encoder:
    """A tokenizer like RoBERTa's: no byte is unknown, and a word inside a sentence has its space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a man saw a dog and the dog saw a man"] * 50, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False)
    return Encoder(tokenizer, pad_id=0, types=False)


# --- schemes


WRITTEN = {
    "IOB1": ["I-A", "I-A", "B-A", "O", "I-B"],
    "IOB2": ["B-A", "I-A", "B-A", "O", "B-B"],
    "IOBES": ["B-A", "E-A", "S-A", "O", "S-B"],
    "BILOU": ["B-A", "L-A", "U-A", "O", "U-B"],
}
"""The same entities in every scheme."""


@given(st.lists(SENTENCES, min_size=1, max_size=5))
def test_a_file_in_iob2_gives_the_entities_that_were_written(sentences: list[list[tuple[str, int]]]) -> None:
    written = [valid(runs) for runs in sentences]
    found = scheme_of(written)
    assert [entities(to_iob2(tags, found)) for tags in written] == [entities(tags) for tags in written]


def test_schemes_are_distinguished_and_read() -> None:
    for scheme, tags in WRITTEN.items():
        assert scheme_of([["O"], tags]) == scheme
        assert to_iob2(tags, scheme) == WRITTEN["IOB2"]
    assert scheme_of([["B-A", "O", "I-A"], ["O", "B-B"]]) == "IOB2"  # with a mistake
    assert scheme_of([["O", "O"], []]) == "IOB2"
    assert scheme_of([["B", "I", "O"]]) == "IOB2"
    for plain in (["DET", "NOUN"], ["PER", "O", "B-PER"], ["E", "S", "O"], ["B-A", "E-A", "L-A"], ["B", "B-A"]):
        assert scheme_of([plain]) == PLAIN


@pytest.mark.parametrize(
    ("broken", "scheme", "expected"),
    [
        ("O I-A I-A", "IOB2", "O B-A I-A"),
        ("B-A I-B I-B I-A", "IOB2", "B-A B-B I-B B-A"),
        ("E-A E-A I-A", "IOBES", "B-A B-A B-A"),
        ("S-A I-A E-A", "IOBES", "B-A B-A I-A"),
        ("B-A B-A E-B O I-B S-B", "IOBES", "B-A B-A B-B O B-B B-B"),
        ("B-A L-A L-A U-A", "BILOU", "B-A I-A B-A B-A"),
        ("B I I O I", "IOB2", "B I I O B"),
    ],
)
def test_broken_sequences_begin_an_entity_where_none_is_open(broken: str, scheme: str, expected: str) -> None:
    assert to_iob2(broken.split(), scheme) == expected.split()
    assert [label for label, _, _ in entities(expected.split())].count("A") == expected.split().count("B-A")


# --- reading


def form_of(*rows: dict[str, Any], **said: str | None) -> TagForm:
    found = TagForm.guess(list(rows[0]), rows, said)
    assert found is not None
    return found


def read(row: dict[str, Any], **said: str | None) -> list[str] | None:
    form = form_of(row, **said)
    given = form.input(row, 7, "x.jsonl")
    assert given is not None
    return form.target(row, given, 7, "x.jsonl")


@pytest.mark.parametrize(
    ("words", "tags"), [("tokens", "tags"), ("words", "ner_tags"), ("Tokens", "pos"), ("words", "ner")]
)
def test_lists_are_found_by_their_columns_names(words: str, tags: str) -> None:
    row = {"id": 1, words: ["Ann", "Lee", "ran"], tags: ["I-PER", "I-PER", "O"]}
    assert form_of(row).columns == {"text": words, "label": tags}
    assert form_of(row).scheme == "IOB1"
    assert read(row) == ["B-PER", "I-PER", "O"]


def test_columns_that_were_said_are_read() -> None:
    row = {"tokens": ["no"], "tags": ["O"], "mine": ["Ann", "ran"], "its": np.array(["S-P", "O"])}
    assert read(row, text="mine", label="its") == ["B-P", "O"]
    with pytest.raises(DataError, match="no column 'toknes'") as caught:
        form_of(row, text="toknes")
    assert "tokens" in caught.value.hint


def test_spans_become_tags_and_are_widened_to_words() -> None:
    text = "Ann-Marie Lee (naïve) lives in Bern."
    spans = [{"start": 31, "end": 35, "label": "LOC"}, [0, 11, "PER"], {"start": 16, "end": 18, "type": "ADJ"}]
    row = {"text": text, "entities": spans}
    words = form_of(row).input(row, 1, "x")["tokens"]
    assert words == ["Ann", "-", "Marie", "Lee", "(", "naïve", ")", "lives", "in", "Bern", "."]
    assert read(row) == ["B-PER", "I-PER", "I-PER", "I-PER", "O", "B-ADJ", "O", "O", "O", "B-LOC", "O"]
    assert read({"text": text, "label": [[31, 35, "LOC"]], "tokens": [{"id": 0}]}) == ["O"] * 9 + ["B-LOC", "O"]
    nothing = {"text": text, "entities": []}
    assert form_of(row).target(nothing, words_of(text), 1, "x") == ["O"] * 11


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "has 2 words but 1 tags"),
        ({"tokens": ["a"], "tags": [3]}, "the tag 3 is not a name"),
        ({"tokens": ["a"], "tags": [" "]}, "the tag ' ' is not a name"),
        ({"tokens": ["a"], "tags": "O"}, "holds a str, not a list"),
        ({"tokens": ["a"], "tags": ["X-A"]}, "the tag 'X-A' does not fit the others, which are in IOB2"),
        ({"tokens": [["a"]], "tags": ["O"]}, "neither a text nor a list of words"),
    ],
)
def test_a_bad_row_of_lists_is_named(row: dict[str, Any], what: str) -> None:
    form = TagForm({"text": "tokens", "label": "tags"}, "")
    with pytest.raises(DataError, match=f"row 7 of 'x.jsonl'.*{what}") as caught:
        form.target(row, form.input(row, 7, "x.jsonl"), 7, "x.jsonl")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("spans", "what"),
    [
        ([[0, 3, "A"], [2, 5, "B"]], "2–5 .B. overlaps"),
        ([[0, 1, "A"], [1, 2, "B"]], "share the word 'Ann'"),
        ([[0, 99, "A"]], "is not inside the text, which has 9 characters"),
        ([[-1, 2, "A"]], "is not inside"),
        ([[2, 2, "A"]], "is not inside"),
        ([[3, 5, "A"]], "holds no word"),
        ([{"start": 0, "end": 3}], "is not a span"),
        ([[0.5, 3, "A"]], "is not a span"),
        (["PER"], "is not a span"),
    ],
)
def test_a_bad_span_is_named_with_its_row(spans: list[Any], what: str) -> None:
    row = {"text": "Ann  left", "spans": spans}
    form = TagForm({"text": "text", "label": "spans"}, "")
    with pytest.raises(DataError, match=f"row 7 of 'x.jsonl'.*{what}"):
        form.target(row, form.input(row, 7, "x.jsonl"), 7, "x.jsonl")


def test_rows_without_words_or_tags_are_none_and_other_files_are_of_another_kind() -> None:
    form = TagForm({"text": "tokens", "label": "tags"}, "")
    assert [form.input({"tokens": value}, 1, "x") for value in (None, [], "", " \n", float("nan"))] == [None] * 5
    assert form.target({"tags": None}, given_of(["a"]), 1, "x") is None
    assert TagForm.guess(["text", "label"], [{"text": "a text", "label": "good"}], {}) is None
    assert TagForm.guess(["words", "labels"], [{"words": ["a", "b", "c"], "labels": ["sport"]}] * 3, {}) is None
    for names in ([], ["news"], [{"by": "me"}]):
        assert TagForm.guess(["text", "labels"], [{"text": "a text", "labels": names}], {}) is None
    rows = [{"tokens": ["a"], "tags": ["O"]}]
    assert TagForm.guess(["tokens", "tags"], rows, {"pair": "x"}) is None


@given(st.text())
def test_words_are_all_of_a_text_but_its_white_space(text: str) -> None:
    found = words_of(text)
    assert [text[a:b] for a, b in found["offsets"]] == found["tokens"]
    assert "".join(found["tokens"]).split() == ["".join(text.split())][: bool(text.split())]


def test_words_of_many_scripts() -> None:
    assert words_of("हिन्दी में")["tokens"] == ["हिन्दी", "में"]
    assert words_of("cafe\u0301s, 東京タワー ไทย")["tokens"] == ["cafe\u0301s", ",", *"東京タワー", *"ไทย"]
    assert words_of("می‌خواهم שלום 👩\u200d🚀!")["tokens"] == ["می‌خواهم", "שלום", "👩\u200d", "🚀", "!"]


# --- windows and alignment


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(9, 24))
def test_windows_cover_all_words_and_each_is_answered_where_it_sees_most(lengths: list[int], room: int) -> None:
    ends = np.cumsum([0, *lengths])
    spans = windows(ends, room)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(lengths)
    assert all(ends[end] - ends[start] <= room for start, end in spans)
    for (a, b), (c, d) in itertools.pairwise(spans):
        assert a < c <= b < d
        assert ends[b] - ends[c] <= room // 4
        assert ends[b] - ends[c - 1] > room // 4 or ends[b + 1] - ends[c - 1] > room  # no more can be shared

    def sees(word: int, span: tuple[int, int]) -> float:
        before = ends[word] - ends[span[0]] if span[0] else np.inf
        behind = ends[span[1]] - ends[word + 1] if span[1] < len(lengths) else np.inf
        return float(min(before, behind))

    shares = owned(ends, spans)
    assert [word for first, behind in shares for word in range(first, behind)] == list(range(len(lengths)))
    for (first, behind), own in zip(shares, spans, strict=True):
        for word in range(first, behind):
            there = [span for span in spans if span[0] <= word < span[1]]
            assert own == max(there, key=lambda span, word=word: sees(word, span))  # type: ignore[misc]


def born(base: at.Base, kind: Tag, seed: int = 0) -> dict[str, torch.Tensor]:
    v = kind.init(base.width, torch.Generator().manual_seed(seed))
    return {**v, "head.weight": v["head.weight"] * 50}


def test_a_long_sentence_is_answered_as_each_word_is_in_its_best_window(base: at.Base) -> None:
    kind = Tag(("a", "b", "c", "d"), PLAIN)
    words = random.Random(0).choices([*FILLER, "apple", "lion", "saw", "pear-apple"], k=150)
    examples = kind.examples(base.encoder, [given_of(words)], 32)
    v = born(base, kind)
    got = kind.decode(infer(base, examples, kind, v, None, "mean"), examples)[0]

    pieces = [base.encoder.pieces([word])[0].ids for word in words]
    ends = np.cumsum([0, *map(len, pieces)])
    spans = windows(ends, 30)
    assert len(examples[0]) == len(spans) > 4
    expected, best = [""] * len(words), [-1.0] * len(words)
    for start, end in spans:
        row = base.encoder.row(np.concatenate(pieces[start:end]))
        out = infer(base, [[row]], kind, v, None, "mean")[0]
        for word in range(start, end):
            sees = min(
                ends[word] - ends[start] if start else 999, ends[end] - ends[word + 1] if end < len(words) else 999
            )
            if sees > best[word]:
                best[word] = float(sees)
                expected[word] = kind.labels[int(out[1 + ends[word] - ends[start]].argmax())]
    assert got == expected
    assert len(set(got)) > 1


def test_cutting_a_sentence_leaves_each_word_with_its_own_first_piece(base: at.Base) -> None:
    kind = Tag(LABELS)
    words = ["apple", "saw-saw-saw", "", "lion", " ".join(["bear"] * 100), "plum", "\x00", "wolf"]
    names = base.encoder.words()
    for max_length in (4, 8, 64):
        example = kind.examples(base.encoder, [given_of(words)], max_length)[0]
        firsts = [names[row.ids[place]] for row in example for place in row.at.places]
        assert firsts == ["apple", "saw", "[UNK]", "lion", "bear", "plum", "[UNK]", "wolf"]
        assert max(len(row.ids) for row in example) <= max_length
        assert any(row.truncated for row in example)
        assert [row.at.first for row in example] == np.cumsum([0, *(len(row.at.places) for row in example)])[
            :-1
        ].tolist()


def test_a_word_inside_a_sentence_has_its_space_where_the_tokenizer_wants_it(bytelevel: Encoder) -> None:
    kind = Tag(LABELS)
    from_words, from_text = kind.examples(bytelevel, [given_of(["a", "dog", "saw"]), words_of(" a dog saw")], 32)
    whole = bytelevel.row(bytelevel.pieces(["a dog saw"])[0].ids)
    assert from_words[0].ids.tolist() == from_text[0].ids.tolist() == whole.ids.tolist()
    glued = kind.examples(bytelevel, [words_of("a dog,man")], 32)[0][0]
    names = bytelevel.words()
    assert [names[glued.ids[place]] for place in glued.at.places] == ["a", "Ġdog", ",", "man"]


def test_every_input_has_an_answer_for_every_word(base: at.Base, bytelevel: Encoder) -> None:
    kind = Tag(LABELS)
    texts = ["", " \t\n", "\x00\x01", "👩\u200d🚀😀", "שלום עולם", "\ud800 apple", "a" * 2_000_000, "\u200b\ufeff"]
    inputs = kind.inputs([*texts, [], ["", " ", "\ud800", "\u200b"]], RECORD)
    counts = [len(one["tokens"]) for one in inputs]
    for encoder in (base.encoder, bytelevel):
        examples = kind.examples(encoder, inputs, 16)
        assert all(examples)
        assert examples[texts.index("a" * 2_000_000)][0].truncated
        assert [sum(len(row.at.places) for row in example) for example in examples] == counts
        rows = [row for example in examples for row in example]
        assert all(0 < place < len(row.ids) - 1 for row in rows for place in row.at.places)
    examples = kind.examples(base.encoder, inputs, 16)
    found = kind.predictions(infer(base, examples, kind, born(base, kind), None, "mean"), examples, inputs, None)
    assert [len(one.tags) for one in found] == counts
    assert found[0].to_dict() == {"tags": [], "tokens": [], "entities": []}
    assert kind.decode([], []) == []
    assert kind.loss([], [], []).tolist() == []


def test_a_hundred_thousand_words_are_aligned(base: at.Base) -> None:
    kind = Tag(LABELS)
    example = kind.examples(base.encoder, [given_of(random.Random(0).choices(FILLER, k=100_000))], 64)[0]
    assert sum(len(row.at.places) for row in example) == 100_000
    out = [torch.randn(len(row.ids), 5, generator=torch.Generator().manual_seed(i)) for i, row in enumerate(example)]
    tags = kind.decode(out, [example])[0]
    assert len(tags) == 100_000
    assert to_iob2(tags, "IOB2") == tags


# --- answers


@given(st.lists(st.lists(st.floats(-5, 0), min_size=5, max_size=5), min_size=1, max_size=4))
def test_the_decoded_tags_are_the_most_probable_valid_ones(rows: list[list[float]]) -> None:
    logp = np.array(rows)
    path = decode(logp, LABELS)
    tags = [LABELS[i] for i in path]
    assert to_iob2(tags, "IOB2") == tags
    every = [
        p
        for p in itertools.product(range(5), repeat=len(rows))
        if to_iob2([LABELS[i] for i in p], "IOB2") == [LABELS[i] for i in p]
    ]
    best = max(sum(logp[t, i] for t, i in enumerate(p)) for p in every)
    assert sum(logp[t, i] for t, i in enumerate(path)) == pytest.approx(best)


def outputs(kind: Tag, example: Any, tags: list[str], sure: list[float]) -> list[torch.Tensor]:
    """What a head gives that is as sure of these tags as said, for a example of one row."""
    out = torch.zeros(len(example[0].ids), kind.width)
    for place, tag, p in zip(example[0].at.places, tags, sure, strict=True):
        out[place] = torch.log(torch.full((kind.width,), (1 - p) / (kind.width - 1)))
        out[place, kind.labels.index(tag)] = torch.log(torch.tensor(p))
    return [out]


def test_entities_are_told_with_their_characters_words_and_scores(base: at.Base) -> None:
    kind = Tag.of(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], "IOBES")
    assert kind.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    inputs = kind.inputs("Ann\n Lee: Bern", RECORD)
    examples = kind.examples(base.encoder, inputs, 32)
    out = outputs(kind, examples[0], ["B-PER", "I-PER", "O", "B-LOC"], [0.9, 0.8, 0.99, 0.6])
    (found,) = kind.predictions(out, examples, inputs, None)
    person, place = found.to_dict()["entities"]
    assert person["score"] == pytest.approx(0.8)
    assert {**person, "score": 0} == {
        "label": "PER", "text": "Ann\n Lee", "start": 0, "end": 8, "score": 0, "first": 0, "last": 1,
    }  # fmt: skip
    assert (place["text"], place["start"], place["end"], place["first"], place["last"]) == ("Bern", 10, 14, 3, 3)
    assert found.columns() == {"prediction": "PER: Ann Lee; LOC: Bern"}
    (sure,) = kind.predictions(out, examples, inputs, 0.7)
    assert sure.columns() == {"prediction": "PER: Ann Lee"}
    assert sure.tags == ["B-PER", "I-PER", "O", "O"]
    words = kind.inputs([["Ann", "Lee", ":", "Bern"]], RECORD)
    (listed,) = kind.predictions(out, examples, words, None)
    assert [(e.text, e.start, e.end) for e in listed.entities] == [("Ann Lee", None, None), ("Bern", None, None)]


def test_plain_tags_are_told_word_by_word(base: at.Base) -> None:
    kind = Tag.of(["NOUN", "DET"], PLAIN)
    inputs = kind.inputs([("the", "dog")], RECORD)
    examples = kind.examples(base.encoder, inputs, 32)
    out = outputs(kind, examples[0], ["DET", "NOUN"], [0.9, 0.6])
    assert kind.predictions(out, examples, inputs, None)[0].columns() == {"prediction": "DET: the; NOUN: dog"}
    assert kind.predictions(out, examples, inputs, 0.7)[0].tags == ["DET", None]
    assert kind.score([["DET", "NOUN"]], kind.decode(out, examples))["f1"] == 1.0


def test_inputs_are_texts_or_lists_of_words() -> None:
    kind = Tag(LABELS)
    made = kind.inputs(["two words", ["two", "words"], np.array(["one"])], RECORD)
    assert [given["tokens"] for given in made] == [["two", "words"], ["two", "words"], ["one"]]
    assert kind.inputs(made, RECORD) == made
    assert kind.inputs({"tokens": ["one"]}, RECORD)[0] == made[2]
    for bad in ([3], [["a", 3]], [None], [{"words": []}]):
        with pytest.raises(UsageError, match="'names' takes a text or a list of words"):
            kind.inputs(bad, RECORD)


def test_changed_counts_inputs_whose_tags_differ(base: at.Base) -> None:
    kind = Tag(LABELS)
    examples = kind.examples(base.encoder, [given_of(["apple", "saw"])] * 2, 32)
    a, b = (outputs(kind, examples[0], tags, [0.9, 0.9])[0] for tags in (["O", "B-A"], ["O", "O"]))
    assert kind.changed([a, a], [a, b], examples) == 1
    assert kind.changed([a, b], [a, b], examples) == 0


# --- learning


def test_the_loss_is_the_mean_over_words_that_are_answered_and_known(base: at.Base) -> None:
    kind = Tag(LABELS)
    words = random.Random(1).choices(FILLER, k=60)
    examples = kind.examples(base.encoder, [given_of(words), given_of(["apple", "saw"])], 16)
    targets = [[LABELS[i % 5] for i in range(60)], ["B-A", "B-unseen"]]
    out = infer(base, examples, kind, born(base, kind), None, "mean")
    loss = kind.loss(out, examples, targets)
    first = [out[i][place].log_softmax(-1) for i, row in enumerate(examples[0]) for place in row.at.places]
    expected = -sum(logp[LABELS.index(tag)] for logp, tag in zip(first, targets[0], strict=True)) / 60
    assert loss[0] == pytest.approx(float(expected), rel=1e-5)
    assert loss[1] == pytest.approx(-float(out[-1][1].log_softmax(-1)[1]), rel=1e-5)
    row = examples[0][2]  # in training a long input may be some of its rows
    mine = -sum(out[2][place].log_softmax(-1)[(row.at.first + i) % 5] for i, place in enumerate(row.at.places))
    assert kind.loss([out[2]], [[row]], targets[:1])[0] == pytest.approx(float(mine) / len(row.at.places), rel=1e-5)


def test_a_step_learns_from_a_few_windows_of_a_long_input_and_many_steps_from_all(base: at.Base) -> None:
    kind = Tag(LABELS)
    examples = kind.examples(base.encoder, [given_of(FILLER * 20), given_of(["apple"])], 16)
    whole = {row.at.first for row in examples[0]}
    assert len(whole) > 2 * MOST_ROWS
    seen: set[int] = set()
    for seed in range(40):
        long, short = kind.resampled([kind.for_training(example, None) for example in examples], seed)
        firsts = [row.at.first for row in long]
        assert len(firsts) == MOST_ROWS
        assert firsts == sorted(firsts)
        assert short is examples[1]
        seen.update(firsts)
    assert seen == whole
    assert kind.resampled(examples, None) == examples
    again = [[row.at.first for row in kind.resampled(examples, seed)[0]] for seed in (3, 3, 4)]
    assert again[0] == again[1] != again[2]


def test_the_bits_of_an_input_do_not_depend_on_the_batch(base: at.Base) -> None:
    kind = Tag(LABELS)
    rng = random.Random(0)
    inputs = [given_of(rng.choices(FILLER, k=rng.randint(1, 90))) for _ in range(12)]
    targets = [rng.choices(LABELS, k=len(given["tokens"])) for given in inputs]
    v = born(base, kind)
    examples = kind.examples(base.encoder, inputs, 32)
    out = infer(base, examples, kind, v, None, "mean", batch_size=7)
    losses = kind.loss(out, examples, targets)
    at_row = 0
    for i, example in enumerate(examples):
        again = kind.examples(base.encoder, [inputs[i]], 32)
        alone = infer(base, again, kind, v, None, "mean")
        assert all(map(torch.equal, alone, out[at_row : at_row + len(example)]))
        assert torch.equal(kind.loss(alone, again, [targets[i]])[0], losses[i])
        at_row += len(example)


def things(rows: int, seed: int) -> tuple[list[Any], list[list[str]]]:
    """Sentences with an apple, or a lion, and none, one or two more of its sort behind it."""
    rng = random.Random(seed)
    inputs, targets = [], []
    for _ in range(rows):
        words, tags = [], []
        for _ in range(rng.randint(2, 6)):
            name = rng.choice(["", "fruit", "beast"])
            first, *others = WORDS[name].split() if name else rng.sample(FILLER, 3)
            more = rng.randint(0, 2)
            words += [first, *others[:more]]
            tags += [f"{'I' if i else 'B'}-{name}" if name else "O" for i in range(1 + more)]
        inputs.append(given_of(words))
        targets.append(tags)
    return inputs, targets


def test_a_rule_is_learned(base: at.Base) -> None:
    inputs, targets = things(240, 0)
    kind = Tag.of(itertools.chain(*targets), "IOB1")
    method = parse("houlsby:16")
    generator = torch.Generator().manual_seed(0)
    hooked = HookedModel(share(base.hooked.model), base.hooked.architecture)
    born = method.init(hooked.sites, base.hooked.backbone, generator) | kind.init(base.width, generator)
    v = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in born.items()}
    hooked.bind(method.plan(hooked.sites, v))
    optimiser = torch.optim.AdamW(v.values(), lr=1e-2)
    examples = kind.examples(base.encoder, inputs, 12)
    order = random.Random(0)
    for epoch in range(12):
        shuffled = order.sample(range(240), 240)
        for start in range(0, 240, 24):
            some = shuffled[start : start + 24]
            batch = kind.resampled([kind.for_training(examples[i], targets[i]) for i in some], epoch)
            out = forward(base, batch, kind, v, "mean", batch_size=99, hooked=hooked)
            optimiser.zero_grad()
            kind.loss(out, batch, [targets[i] for i in some]).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    inputs, targets = things(80, 1)
    examples = kind.examples(base.encoder, inputs, 12)
    assert sum(map(len, examples)) > len(examples)  # some are longer than a window
    out = infer(base, examples, kind, {name: p.detach() for name, p in v.items()}, None, "mean", hooked=hooked)
    answers = kind.decode(out, examples)
    found = kind.score(targets, answers)
    assert found["f1"] > 0.9, found
    low, high = kind.intervals(targets, answers)["f1"]
    assert low <= found["f1"] <= high
    assert kind.extra() == {"scheme": "IOB1"}
