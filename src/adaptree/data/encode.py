"""Texts to token ids."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adaptree.data.writer import Writer, read_writer
from adaptree.errors import BaseError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Text = str | tuple[str, str]
AT_ONCE = 100_000
"""The most characters that are tokenized at once."""


class Encoding(NamedTuple):
    """One row of tokens: a text or a pair, or a window of one."""

    ids: np.ndarray[Any, Any]
    types: np.ndarray[Any, Any] | None
    truncated: bool
    at: Any = None
    """Where in its input the row lies, in whatever form the kind of task needs."""


class Pieces(NamedTuple):
    """A text's tokens, without special ones and without a limit."""

    ids: np.ndarray[Any, Any]
    spans: np.ndarray[Any, Any]
    """(pieces, 2): the characters that each stands for, from and to."""


class Layout(NamedTuple):
    """The texts of an input, and what each token of its rows stands for."""

    texts: list[str]
    rows: list[np.ndarray[Any, Any]]
    """For each row (tokens, 3): the number of a text, and its characters from and to; -1 for a special token."""
    words: list[list[tuple[int, int]]] | None = None
    """The characters of each text's words, where the input says which they are."""


class Frame(NamedTuple):
    """The special tokens around a text, or before, between and after the two of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second: int
    """The token type of the second text."""


class Encoder:
    """A base's tokenizer. `types`: whether the model tells the two texts of a pair apart by token types."""

    def __init__(self, tokenizer: Tokenizer, *, pad_id: int, types: bool, writer: Writer | None = None) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._setting = threading.Lock()  # truncation is a state of the tokenizer, and two tasks may want two lengths
        self._frames: dict[bool, Frame] = {}
        self.pad_id = pad_id
        self.types = types
        self.writer = writer
        """How the base writes text; None if it does not."""

    @classmethod
    def load(
        cls, folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False, writes: bool = False
    ) -> Encoder:
        """Read tokenizer.json where there is one (quick), else load through transformers; `writes` as `load_base`."""
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        try:
            if path.is_file():
                tokenizer = Tokenizer.from_file(str(path))
            else:
                from transformers import AutoTokenizer

                loaded = AutoTokenizer.from_pretrained(
                    str(folder), local_files_only=True, trust_remote_code=trust_remote_code
                )
                tokenizer = loaded.backend_tokenizer
                # Where there are no files, transformers makes a tokenizer that knows no words.
                if len(set(tokenizer.get_vocab()) - set(loaded.all_special_tokens)) < 2:
                    raise ValueError("it would know no words")
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            raise BaseError(
                f"the folder '{folder.name}' has no tokenizer that can be read: {first.rstrip('.')}.",
                hint="Save one beside the model: tokenizer.save_pretrained(folder).",
            ) from error
        types, pad = (config.get(key) or 0 for key in ("type_vocab_size", "pad_token_id"))
        if not isinstance(types, int) or not isinstance(pad, int):
            raise BaseError(f"the config.json in '{folder.name}' is damaged: its pad_token_id or type_vocab_size.",
                            hint="Fetch the model again.")  # fmt: skip
        writer = read_writer(folder, config, writes=writes)
        return cls(tokenizer, pad_id=max(0, pad), types=types > 1, writer=writer)

    def encode(self, texts: Sequence[Text], max_length: int) -> list[Encoding]:
        """Return ids of at most `max_length` tokens, special ones included; the longer text of a pair is cut first."""
        # A token is a few characters: what lies far behind the limit need not be looked at, however long the line.
        reach = 64 * max_length + 1024
        cut = [_cut(text, reach) for text in texts]
        with self._setting:
            self._tokenizer.enable_truncation(max_length)
            encodings = self._tokenizer.encode_batch(cut)
        rows = []
        for text, short, encoding in zip(texts, cut, encodings, strict=True):
            ids = np.asarray(encoding.ids or [self.pad_id], dtype=np.int32)
            types = np.asarray(encoding.type_ids or [0], dtype=np.int32) if self.types else None
            longer = (
                len(short) < len(text) if isinstance(text, str) else any(map(lambda s, t: len(s) < len(t), short, text))
            )
            rows.append(Encoding(ids, types, bool(encoding.overflowing) or longer))
        return rows

    def places(self, text: Text, max_length: int) -> np.ndarray[Any, Any]:
        """Return what each token of an encoded text or pair stands for, as a row of `Layout`."""
        with self._setting:
            self._tokenizer.enable_truncation(max_length)
            (encoding,) = self._tokenizer.encode_batch([_cut(text, 64 * max_length + 1024)])
        found = [
            (-1, 0, 0) if of is None else (of, *span)
            for of, span in zip(encoding.sequence_ids, encoding.offsets, strict=True)
        ]
        return np.array(found or [(-1, 0, 0)], dtype=np.int64)

    @property
    def unknown_id(self) -> int:
        """The id of the unknown token; -1 where the tokenizer has none."""
        word = getattr(self._tokenizer.model, "unk_token", None)
        found = self._tokenizer.token_to_id(word) if word else None
        return -1 if found is None else int(found)

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the tokens of whole texts, however long; a kind of task puts windows of them into rows with `row`."""
        if any(len(text) > AT_ONCE for text in texts):
            return [self._long(text) for text in texts]
        with self._setting:
            self._tokenizer.no_truncation()
            encodings = self._tokenizer.encode_batch([_whole(text) for text in texts], add_special_tokens=False)
        return [
            Pieces(np.asarray(e.ids, dtype=np.int32), np.asarray(e.offsets, dtype=np.int64).reshape(-1, 2))
            for e in encodings
        ]

    def _long(self, text: str) -> Pieces:
        """Tokenize a text in parts, cut before white space: the tokenizer needs a hundred times a text's memory."""
        parts, start = [], 0
        while True:
            end = start + AT_ONCE
            if end < len(text):
                spaces = [at for at in range(end, max(start, end - 1000), -1) if text[at].isspace()]
                end = spaces[0] if spaces else end
            (part,) = self.pieces([text[start:end]])
            parts.append(Pieces(part.ids, part.spans + start))
            start = end
            if start >= len(text):
                return Pieces(*(np.concatenate([part[i] for part in parts]) for i in (0, 1)))

    def frame(self, *, pair: bool) -> Frame:
        """Return the special tokens that this tokenizer puts around one text or two, found by encoding a letter."""
        if pair not in self._frames:
            with self._setting:
                self._tokenizer.no_truncation()
                encoding = self._tokenizer.encode("a", "a" if pair else None)
            parts: list[list[int]] = [[], [], []]
            place, second = 0, 0
            for token, of, kind in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
                if of is None:
                    parts[place].append(token)
                else:
                    place = 2 if of == int(pair) else 1
                    second = kind if of == 1 else second
            self._frames[pair] = Frame(tuple(parts[0]), tuple(parts[1]), tuple(parts[2]), second)
        return self._frames[pair]

    def room(self, max_length: int, *, pair: bool) -> int:
        """Return how many tokens of text fit into a row."""
        return max_length - sum(map(len, self.frame(pair=pair)[:3]))

    def row(
        self, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any] | None = None, *, at: Any = None
    ) -> Encoding:
        """Return tokens of one text or two as a row, with the special tokens where this tokenizer puts them."""
        frame = self.frame(pair=second is not None)
        parts: list[Any] = [frame.before, first]
        if second is not None:
            parts += [frame.between, second]
        parts.append(frame.after)
        ids = np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])
        if not len(ids):
            ids = np.array([self.pad_id], dtype=np.int32)
        types = None
        if self.types:
            types = np.zeros(len(ids), dtype=np.int32)
            if second is not None:
                types[len(frame.before) + len(first) + len(frame.between) :] = frame.second
        return Encoding(ids, types, False, at)

    def row_places(
        self, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Return what each token of a `row` stands for, given that of its texts' tokens, (tokens, 3) each."""
        frame = self.frame(pair=second is not None)
        parts = [_special(frame.before), first]
        if second is not None:
            parts += [_special(frame.between), second]
        whole = np.concatenate([*parts, _special(frame.after)])
        return whole if len(whole) else _special((self.pad_id,))

    def tokenizer(self) -> Tokenizer:
        """Return a copy of the tokenizer, without truncation and padding."""
        from tokenizers import Tokenizer

        with self._setting:
            self._tokenizer.no_truncation()
            return Tokenizer.from_str(self._tokenizer.to_str())

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @property
    def highest_id(self) -> int:
        """The largest id of a token; ids may have gaps."""
        return max(self._tokenizer.get_vocab().values(), default=0)

    def mask_id(self) -> int:
        """Return the token that stands for a hidden word."""
        for name in ("[MASK]", "<mask>"):
            if (found := self._tokenizer.token_to_id(name)) is not None:
                return int(found)
        raise BaseError(
            "this base's tokenizer has no mask token, so no words can be hidden.",
            hint="Choose a base that was pretrained with masks, such as a BERT.",
        )

    def words(self) -> tuple[str, ...]:
        """Return the spelling of every token, by its id."""
        return tuple(self._tokenizer.id_to_token(i) or "" for i in range(self.vocabulary))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text that tokens stand for, without special ones."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def lengths(self, texts: Sequence[Text]) -> list[int]:
        """Return how many tokens each text has, uncut."""
        with self._setting:
            self._tokenizer.no_truncation()
            return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]


def spans_of(number: int, spans: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the characters of some tokens, (tokens, 2), with the number of their text before them."""
    found = np.full((len(spans), 3), number, dtype=np.int64)
    found[:, 1:] = spans
    return found


def _special(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.tile(np.array([[-1, 0, 0]], dtype=np.int64), (len(tokens), 1))


def _cut(text: Text, reach: int) -> Text:
    if isinstance(text, tuple):
        return _whole(text[0][:reach]), _whole(text[1][:reach])
    return _whole(text[:reach])


def _whole(text: str) -> str:
    """Return the text without half surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text if text.isprintable() else text.encode(errors="replace").decode()
