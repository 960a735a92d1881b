"""Write many texts at once, one token of each in a step; texts of any tasks join and leave between steps.

    loop = DecodingLoop(base, bank=bank)
    loop.add(Text(row.ids, Decoding(), base, place=place))
    while loop:
        for text in loop.step():                # those that are over
            text.prediction

A text's prompt is read once, several short prompts together and a long one in pieces, and its keys and values stay in
its row of a `RowCache`. In each step every row runs under its own task's weights (`Bank.plan`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adaptree.data.decoding import Decoding
from adaptree.errors import AdaptreeError, UsageError
from adaptree.kinds.generate import TextPrediction, writer_of
from adaptree.methods import Plan
from adaptree.models.generation import OnText, most_new, read_text, settled
from adaptree.models.passes import NotShareable
from adaptree.models.row_cache import RowCache, arranged

if TYPE_CHECKING:
    from adaptree.models.bank import Bank, Place
    from adaptree.models.base import Base
    from adaptree.models.hooks import HookedModel

MOST_TEXTS = 32
"""Texts that are written at once."""
MEMORY = 1 << 30
"""Bytes of keys and values; a text that alone takes more is written alone."""
PIECE = 512
"""Tokens of prompts that are read at once: enough for full speed, and others do not wait long."""


class Text:
    """A prompt, and the text that is written after it."""

    def __init__(
        self,
        prompt: np.ndarray[Any, Any],
        decoding: Decoding,
        base: Base,
        *,
        place: Place | None = None,
        on_text: OnText | None = None,
    ) -> None:
        """Raise UsageError for a prompt that leaves no room, and for beams and choices, which are not for steps."""
        if decoding.beams > 1 or decoding.choices:
            raise UsageError("beams and choices are not for texts that are written step by step.")
        self.prompt, self.decoding, self.place = prompt, decoding, place
        self.most = most_new(base, len(prompt), decoding)
        """How many tokens may be written."""
        self.written: list[int] = []
        self.failed: AdaptreeError | None = None
        """Why it cannot be written."""
        self.seen = 0
        """Tokens that are in the cache."""
        self.slot = -1
        self._encoder, self._ends = base.encoder, frozenset(writer_of(base.encoder).ends)
        self._on_text, self._sent = on_text, 0
        self._generator = torch.Generator().manual_seed(decoding.seed) if decoding.temperature > 0 else None

    @property
    def longest(self) -> int:
        """How many tokens of it may come to be in the cache."""
        return len(self.prompt) + self.most

    @cached_property
    def prediction(self) -> TextPrediction:
        """The text, once it is over."""
        return read_text(self._encoder, self.written, self.decoding)

    def choose(self, logits: Tensor) -> int:
        """Return the next token: the likeliest, or one that is drawn, as transformers' `generate` does."""
        how = self.decoding
        if self._generator is None:
            return int(logits.argmax())
        from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

        scores = logits[None].float().cpu()
        none: Any = None
        if how.temperature != 1:
            scores = TemperatureLogitsWarper(float(how.temperature))(none, scores)
        if how.top_p < 1:
            scores = TopPLogitsWarper(how.top_p)(none, scores)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))

    def take(self, token: int) -> bool:
        """Add a token; return whether the text is over."""
        self.written.append(token)
        over = token in self._ends or len(self.written) >= self.most
        if not self._on_text and not self.decoding.stop:
            return over
        shown = self._encoder.text([each for each in self.written if each not in self._ends])
        text, stopped = settled(shown, self.decoding.stop, over)
        if self._on_text is not None and len(text) > self._sent:
            self._on_text(text[self._sent :])
            self._sent = len(text)
        return over or stopped


class DecodingLoop:
    """Texts under way on one model: the base with the tasks of a bank, or a model with a plan that all texts share."""

    def __init__(
        self,
        base: Base,
        *,
        bank: Bank | None = None,
        hooked: HookedModel | None = None,
        plan: Plan | None = None,
        most: int = MOST_TEXTS,
        memory: int = MEMORY,
    ) -> None:
        self.base, self._bank, self._hooked, self._shared = base, bank, hooked or base.hooked, plan
        self.most, self.memory = most, memory
        self.waiting: deque[Text] = deque()
        """Texts whose prompts were not read yet."""
        self.running: list[Text] = []
        """Texts of which a token is written in each step, by their slots."""
        self._reading: Text | None = None
        """The text whose long prompt is read in pieces."""
        self.alone = _has_window(self._hooked.model)
        """Whether each text has passes of its own."""
        self._cache = RowCache()
        self._changed = False
        self._plan: Plan | None = None

    def __len__(self) -> int:
        return len(self.waiting) + len(self._under_way)

    @property
    def _under_way(self) -> list[Text]:
        return self.running if self._reading is None else [*self.running, self._reading]

    def add(self, text: Text) -> None:
        """Let a text join at the next step, or as soon as there is room."""
        self.waiting.append(text)

    def drop(self, gone: Callable[[Text], bool]) -> None:
        """Forget texts that nobody waits for."""
        self.waiting = deque(text for text in self.waiting if not gone(text))
        self._keep(text for text in self._under_way if not gone(text))

    def clear(self) -> None:
        """Forget all texts, and free the memory."""
        self.waiting.clear()
        self._keep(())

    def step(self) -> list[Text]:
        """Read the prompts of texts that have room, and write one token of all others; return texts that are over."""
        over: list[Text] = []
        with torch.inference_mode():
            if self.waiting or self._reading is not None:
                over += self._read()
            if self.running:
                over += self._write()
        return over

    def _fits(self, texts: Sequence[Text]) -> bool:
        """Return whether so many texts of such lengths may be under way."""
        size = len(texts) * max(text.longest for text in texts) * _bytes_per_token(self._hooked.model)
        return len(texts) == 1 or (len(texts) <= self.most and size <= self.memory)

    # Prompts

    def _read(self) -> list[Text]:
        """Read some prompts that wait, or the next piece of a long one, and write their first tokens."""
        if self._reading is None:
            joining: list[Text] = []
            longest = 0
            while self.waiting and self._fits([*self.running, *joining, self.waiting[0]]):
                longest = max(longest, len(self.waiting[0].prompt))
                if joining and (self.alone or longest * (len(joining) + 1) > PIECE):
                    break
                joining.append(self.waiting.popleft())
            if not joining:
                return []
            if longest <= PIECE:
                return self._read_whole(joining)
            self._reading = joining[0]
            self._changed = True
        return self._read_piece(self._reading)

    def _read_whole(self, texts: list[Text]) -> list[Text]:
        texts.sort(key=lambda text: id(_group(text)))
        self.running += texts
        self._arrange()
        lengths = [len(text.prompt) for text in texts]
        longest = max(lengths)
        ids = torch.full((len(texts), longest), self.base.encoder.pad_id)
        for row, text in zip(ids, texts, strict=True):
            row[longest - len(text.prompt) :] = torch.from_numpy(text.prompt.astype(np.int64))
        start = longest - torch.tensor(lengths)[:, None]
        places = torch.arange(longest) - start
        self._cache.prompts([text.slot for text in texts], lengths)
        try:
            logits = self._pass(self._plan_of(texts), ids, places.clamp(min=0), (places >= 0).long())
        except NotShareable:
            self._part(texts)
            return []
        for text in texts:
            text.seen = len(text.prompt)
        return self._take(texts, logits)

    def _read_piece(self, text: Text) -> list[Text]:
        self._arrange()
        ids = torch.from_numpy(text.prompt[text.seen : text.seen + PIECE].astype(np.int64))[None]
        end = text.seen + ids.shape[1]
        self._cache.piece(text.slot, text.seen)
        logits = self._pass(
            self._plan_of([text]), ids, torch.arange(text.seen, end)[None], torch.ones(1, end, dtype=torch.long)
        )
        text.seen = end
        if end < len(text.prompt):
            return []
        self._reading = None
        self.running.append(text)
        self._changed = True
        return self._take([text], logits)

    # Tokens

    def _write(self) -> list[Text]:
        """Write the next token of each text."""
        self._arrange()
        if self.alone:
            parts = [self._tokens([text], self._plan_of([text])) for text in self.running]
            return self._take(self.running, torch.cat(parts))
        if self._plan is None:
            self._plan = self._plan_of(self.running)
        try:
            logits = self._tokens(self.running, self._plan)
        except NotShareable:
            self._part([])
            return []
        return self._take(self.running, logits)

    def _tokens(self, texts: Sequence[Text], plan: Plan | None) -> Tensor:
        """Return the logits after one more token of texts whose slots are neighbours."""
        lengths = torch.tensor([text.seen for text in texts])
        ids = torch.tensor([[text.written[-1]] for text in texts])
        mask = self._cache.step(texts[0].slot, lengths.to(self.base.device))
        logits = self._pass(plan, ids, lengths[:, None], mask)
        for text in texts:
            text.seen += 1
        return logits

    def _pass(self, plan: Plan | None, ids: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Run tokens through the model; return the logits after the last one of each row, (rows, words)."""
        model: Any = self._hooked.model
        device = self.base.device
        with nullcontext() if plan is None else self._hooked.running(plan):
            found: Tensor = model(
                input_ids=ids.to(device),
                position_ids=places.to(device),
                attention_mask=mask.to(device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        return found[:, -1].float()

    def _take(self, texts: Iterable[Text], logits: Tensor) -> list[Text]:
        """Give each text its next token; let those go that are over, and return them."""
        over = []
        sound = torch.isfinite(logits.sum(-1)).tolist()
        for text, row, good in zip(list(texts), logits, sound, strict=True):
            if not good:
                text.failed = AdaptreeError("the task's weights give no numbers.", hint="adaptree verify")
            if not good or text.take(text.choose(row)):
                over.append(text)
        if over:
            self._keep(text for text in self._under_way if text not in over)
        return over

    # Who is where

    def _plan_of(self, texts: Sequence[Text]) -> Plan | None:
        if self._bank is None:
            return self._shared
        places = [text.place for text in texts if text.place is not None]
        return self._bank.plan(places)

    def _keep(self, texts: Iterable[Text]) -> None:
        """Let all texts go but these."""
        kept = list(texts)
        if len(kept) == len(self._under_way):
            return
        self.running = [text for text in kept if text is not self._reading]
        self._reading = self._reading if self._reading in kept else None
        self._changed, self._plan = True, None
        if not kept:
            self._cache.clear()

    def _part(self, texts: Sequence[Text]) -> None:
        """Let each text have passes of its own from now on; some have to be read again."""
        if self.alone:
            raise AdaptreeError("this base cannot write texts step by step.", hint="adaptree predict")
        self.alone = True
        self._keep(text for text in self._under_way if text not in texts)
        for text in texts:
            text.slot = -1
        self.waiting.extendleft(reversed(texts))

    def _arrange(self) -> None:
        """Give each text a slot with memory for one more token: those of a group are neighbours, and one that is
        still being read is the last."""
        texts = self._under_way
        self._cache.reserve(len(texts), max(max(text.seen, len(text.prompt)) for text in texts) + 1)
        if not self._changed and all(text.slot >= 0 for text in texts):
            return
        slots = arranged(
            [text.slot for text in texts], [text if text is self._reading else _group(text) for text in texts]
        )
        self._cache.move({to: text.slot for text, to in zip(texts, slots, strict=True) if -1 < text.slot != to})
        for text, to in zip(texts, slots, strict=True):
            text.slot = to
        self.running.sort(key=lambda text: text.slot)
        self._changed, self._plan = False, None


def _group(text: Text) -> Any:
    """Return what texts have in common whose weights are in one stack."""
    return None if text.place is None else text.place.group or text.place


def _has_window(model: Any) -> bool:
    """Return whether tokens see only so many before them; rows of other lengths would see others in a shared pass."""
    config = model.config
    return bool(getattr(config, "sliding_window", None)) and bool(getattr(config, "use_sliding_window", True))


def _bytes_per_token(model: Any) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)
