"""Texts to token ids."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adaptree.errors import BaseError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Text = str | tuple[str, str]


class Row(NamedTuple):
    """One encoded input."""

    ids: np.ndarray[Any, Any]
    types: np.ndarray[Any, Any] | None
    truncated: bool


class Encoder:
    """A base's tokenizer. `types`: whether the model tells the two texts of a pair apart by token types."""

    def __init__(self, tokenizer: Tokenizer, *, pad_id: int, types: bool) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._setting = threading.Lock()  # truncation is a state of the tokenizer, and two tasks may want two lengths
        self.pad_id = pad_id
        self.types = types

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> Encoder:
        """From tokenizer.json where there is one (quick), else through transformers."""
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
        types = int(config.get("type_vocab_size") or 0) > 1
        return cls(tokenizer, pad_id=int(config.get("pad_token_id") or 0), types=types)

    def encode(self, texts: Sequence[Text], max_length: int) -> list[Row]:
        """Ids of at most `max_length` tokens, special ones included; the longer text of a pair is cut first."""
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
            rows.append(Row(ids, types, bool(encoding.overflowing) or longer))
        return rows

    def lengths(self, texts: Sequence[Text]) -> list[int]:
        """How many tokens each text has, uncut."""
        with self._setting:
            self._tokenizer.no_truncation()
            return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]


def _cut(text: Text, reach: int) -> Text:
    if isinstance(text, tuple):
        return _whole(text[0][:reach]), _whole(text[1][:reach])
    return _whole(text[:reach])


def _whole(text: str) -> str:
    """The text without half surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text if text.isprintable() else text.encode(errors="replace").decode()
