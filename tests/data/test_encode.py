"""Texts to token ids, whatever the text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.bases import tiny_base, words_csv

from adaptree.data.encode import Encoder
from adaptree.errors import BaseError
from adaptree.kinds.reading import open_data
from adaptree.kinds.regress import Regress
from adaptree.models.embedded import config_of, locate
from adaptree.training.encoded import EncodedDataset

KIND = Regress(0.0, 1.0)


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    folder = locate("minilm")
    return Encoder.load(folder, config_of(folder))


def test_ids_are_those_of_transformers(minilm: Encoder) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(locate("minilm"), local_files_only=True)
    texts = ["Hello, wörld!", "a " * 50, "", "数学 and naïve café", "it's 3.14 o'clock"]
    for text, row in zip(texts, minilm.encode(texts, 24), strict=True):
        assert row.ids.tolist() == theirs(text, truncation=True, max_length=24)["input_ids"]
    pairs = [("a man eats", "someone is eating"), ("x " * 40, "short one")]
    for pair, row in zip(pairs, minilm.encode(pairs, 24), strict=True):
        expected = theirs(*pair, truncation=True, max_length=24)
        assert row.ids.tolist() == expected["input_ids"]
        assert row.types is not None
        assert row.types.tolist() == expected["token_type_ids"]


def test_what_is_cut_is_marked(minilm: Encoder) -> None:
    short, exact, long = minilm.encode(["a", "a " * 6, "a " * 7], 8)
    assert [row.truncated for row in (short, exact, long)] == [False, False, True]
    assert len(long.ids) == 8


@pytest.mark.parametrize(
    "text", ["", "   ", "\0\0", "😀" * 40, "שלום עולם", "\ud800", "x" * 10_000_000, "word " * 100_000]
)
def test_any_text_has_an_encoding(minilm: Encoder, text: str) -> None:
    (row,) = minilm.encode([text], 64)
    assert 1 <= len(row.ids) <= 64


def test_two_threads_may_want_two_lengths(minilm: Encoder) -> None:
    texts = ["word " * 60] * 8
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: (n, minilm.encode(texts, n)), [16, 32] * 100))
    assert all(len(row.ids) == n for n, rows in found for row in rows)


@pytest.mark.parametrize("content", [None, "{oops"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tiny_base(tmp_path) / "tokenizer.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(BaseError, match="no tokenizer"):
        Encoder.load(tmp_path, config_of(tmp_path))


def test_a_small_table_is_encoded_once_and_a_large_one_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_base(tmp_path / "base")
    encoder = Encoder.load(folder, config_of(folder))
    table = open_data(words_csv(tmp_path / "w.csv"))
    calls: list[int] = []
    real = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, n: calls.append(len(texts)) or real(texts, n))
    kept = EncodedDataset(table, KIND, encoder, 8)
    first = kept.examples(np.array([3, 1, 5]))
    again = kept.examples(np.array([5, 3, 7]))
    assert calls == [3, 1]
    assert again[0] is first[2]
    assert kept.truncated == sum(len(table.texts([i])[0].split()) > 6 for i in (1, 3, 5, 7))
    monkeypatch.setattr(EncodedDataset, "KEEP", 10)
    large = EncodedDataset(table, KIND, encoder, 8)
    assert [r.ids.tolist() for [r] in large.examples(np.array([3, 1, 5]))] == [r.ids.tolist() for [r] in first]
    large.examples(np.array([3]))
    assert calls == [3, 1, 3, 1]


TEXTS = ["a house by the sea", "Ünïcode, emoji 🙂 and ﬁ", "", "word " * 40]


def encoders() -> list[Encoder]:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: i for i, word in enumerate(["<s>", "</s>", "<unk>", "a", "house", "by", "the", "sea", "word"])}

    def make(processor: object, types: bool) -> Encoder:
        made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
        if processor is not None:
            made.post_processor = processor  # type: ignore[assignment]
        return Encoder(made, pad_id=1, types=types)

    roberta = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    t5 = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return [make(roberta, False), make(t5, False), make(None, False)]


@pytest.mark.parametrize("number", range(4))
def test_a_row_of_pieces_is_what_the_tokenizer_makes_itself(number: int, minilm: Encoder) -> None:
    encoder = [minilm, *encoders()][number]
    found = encoder.pieces(TEXTS)
    for text, pieces in zip(TEXTS, found, strict=True):
        assert all(0 <= start <= end <= len(text) for start, end in pieces.spans)
        whole = encoder.encode([text], 512)[0]
        made = encoder.row(pieces.ids)
        assert made.ids.tolist() == whole.ids.tolist()
        assert (made.types is None) == (whole.types is None)
        assert len(made.ids) == max(1, len(pieces.ids) + 512 - encoder.room(512, pair=False))
        for other, more in zip(TEXTS, found, strict=True):
            pair = encoder.encode([(text, other)], 512)[0]
            made = encoder.row(pieces.ids, more.ids)
            assert made.ids.tolist() == pair.ids.tolist()
            if pair.types is not None and made.types is not None:
                assert made.types.tolist() == pair.types.tolist()


def test_pieces_say_which_characters_they_stand_for(minilm: Encoder) -> None:
    text = "Adaptors? No: adapters, 🙂."
    (found,) = minilm.pieces([text])
    words = [text[start:end].lower() for start, end in found.spans]
    assert "".join(words) == "adaptors?no:adapters,🙂."


def test_a_long_text_is_cut_into_the_same_pieces_part_by_part(minilm: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Some words, naïve ones 🙂 and\tothers; " * 50
    (whole,) = minilm.pieces([text])
    monkeypatch.setattr("adaptree.data.encode.AT_ONCE", 97)
    (parted,) = minilm.pieces([text])
    assert parted.ids.tolist() == whole.ids.tolist()
    assert parted.spans.tolist() == whole.spans.tolist()
