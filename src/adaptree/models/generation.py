"""Write texts with a base under a task: greedily, by sampling, with beams, or as one of some given texts.

transformers' own `generate` does the work, with the task's adapters active in every step. Prompts of a batch are
padded at the left, so that each text continues its own; where an encoder reads them, at the right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adaptree.data.decoding import MOST_NEW, Decoding
from adaptree.data.encode import Encoder, Encoding
from adaptree.errors import UsageError
from adaptree.kinds.generate import Output, TextPrediction, outputs_of, writer_of
from adaptree.methods import Plan

if TYPE_CHECKING:
    from adaptree.models.bank import Bank, Place
    from adaptree.models.base import Base
    from adaptree.models.hooks import HookedModel

TOKENS = 16_384
"""Tokens of prompts and texts in a batch, at most."""
OnText = Callable[[str], None]


def write(
    base: Base,
    rows: Sequence[Encoding],
    decoding: Decoding,
    *,
    plan: Plan | None = None,
    hooked: HookedModel | None = None,
    bank: Bank | None = None,
    places: Sequence[Place] = (),
    on_text: OnText | None = None,
) -> list[TextPrediction]:
    """Return a text for each prompt, under a plan; without one, under the plan that `hooked` is bound to.

    With a bank, each prompt has the task at its place among `places`, and tasks share batches. `on_text` gets the text
    of a single prompt piece by piece, as it is written.
    """
    new = most_new(base, max((len(row.ids) for row in rows), default=0), decoding)
    if on_text is not None and len(rows) != 1:
        raise UsageError("one text can be followed while it is written, not several.")
    found: dict[int, TextPrediction] = {}
    for at in _batches([len(row.ids) for row in rows], new, decoding.beams):
        if bank is not None:
            at.sort(key=lambda i: (id(places[i].group or places[i]), id(places[i])))
            plan = bank.plan([places[i] for i in at for _ in range(decoding.beams)])
        with torch.inference_mode(), nullcontext() if plan is None else base.hooked.running(plan):
            some = _written(base, [rows[i].ids for i in at], new, decoding, hooked or base.hooked, on_text)
        found |= dict(zip(at, some, strict=True))
    return [found[i] for i in range(len(rows))]


def most_new(base: Base, prompt: int, decoding: Decoding) -> int:
    """Return how many tokens may be written after a prompt of some length; raise UsageError if there is no room."""
    read = prompt if writer_of(base.encoder).start is None else 0  # a decoder beside an encoder has room of its own
    new = decoding.max_new_tokens or max(1, min(MOST_NEW, base.limit - read))
    if read + new > base.limit:
        what, more = (f"a prompt of {prompt:,} tokens leaves", " more") if read else ("there is", " tokens")
        raise UsageError(
            f"{what} no room for {new:,}{more}: the base takes {base.limit:,}.",
            hint="Shorten the prompt, or allow fewer: --max-new-tokens (over HTTP, max_tokens)",
        )
    return new


def choose(
    base: Base,
    rows: Sequence[Encoding],
    decoding: Decoding,
    *,
    plan: Plan | None = None,
    hooked: HookedModel | None = None,
) -> list[TextPrediction]:
    """Return the likeliest of the given choices for each prompt, under a plan as `write` does."""
    with torch.inference_mode(), nullcontext() if plan is None else base.hooked.running(plan):
        return [_chosen(base, row, decoding, hooked) for row in rows]


def _batches(lengths: Sequence[int], new: int, beams: int) -> list[list[int]]:
    """Return the numbers of prompts in batches of like lengths."""
    found: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        tokens = (lengths[found[-1][0]] if found else lengths[i]) + new
        if not found or (len(found[-1]) + 1) * tokens * beams > TOKENS:
            found.append([])
        found[-1].append(i)
    return found


def _written(
    base: Base, prompts: Sequence[Any], new: int, decoding: Decoding, hooked: HookedModel, on_text: OnText | None
) -> list[TextPrediction]:
    model: Any = hooked.model
    encoder, writer = base.encoder, writer_of(base.encoder)
    longest, left = max(map(len, prompts)), writer.start is None
    ids = torch.full((len(prompts), longest), encoder.pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        at = slice(longest - len(prompt), None) if left else slice(len(prompt))
        ids[i, at] = torch.from_numpy(prompt.astype(np.int64))
        mask[i, at] = 1
    options: dict[str, Any] = {}
    if decoding.temperature > 0:
        torch.manual_seed(decoding.seed)
        options = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    first = longest if left else 1  # a decoder begins with a token of its own
    stops = _Stops(encoder, first, decoding.stop) if decoding.stop else None
    out: Tensor = model.generate(
        ids.to(base.device),
        attention_mask=mask.to(base.device),
        max_new_tokens=new,
        do_sample=decoding.temperature > 0,
        num_beams=decoding.beams,
        eos_token_id=list(writer.ends) or None,
        pad_token_id=encoder.pad_id,
        stopping_criteria=[stops] if stops else None,
        streamer=_Streamer(encoder, on_text, decoding.stop) if on_text is not None else None,
        use_cache=True,
        **options,
    )[:, first:]
    return [read_text(encoder, row.tolist(), decoding) for row in out]


def read_text(encoder: Encoder, ids: list[int], decoding: Decoding) -> TextPrediction:
    """Return the text of some tokens, up to the one that ends it or the text at which it stops."""
    ends = set(writer_of(encoder).ends)
    last = next((i for i, token in enumerate(ids) if token in ends), None)
    kept = ids if last is None else ids[:last]
    text = encoder.text(kept)
    cut = _cut(text, decoding.stop)
    return TextPrediction(text[:cut] if cut >= 0 else text, last is not None or cut >= 0, len(kept))


def _cut(text: str, stop: Sequence[str]) -> int:
    """Return where the first text to stop at begins; -1 if there is none in it."""
    return min((at for each in stop if (at := text.find(each)) >= 0), default=-1)


def settled(text: str, stop: Sequence[str], end: bool = False) -> tuple[str, bool]:
    """Return what of a text stays as it is, whatever is written next, and whether it is over as it came to a stop.

    Whole letters stay, and nothing that may be the start of a text to stop at. `end` says that nothing comes any more.
    """
    cut = _cut(text, stop)
    if cut >= 0 or end:
        return text[:cut] if cut >= 0 else text, cut >= 0
    text = text.rstrip("�")
    held = max((n for each in stop for n in range(1, len(each)) if text.endswith(each[:n])), default=0)
    return text[: len(text) - held], False


class _Stops:
    """Ends a text at the first of some words, for transformers' `generate`."""

    def __init__(self, encoder: Encoder, start: int, stop: Sequence[str]) -> None:
        self.encoder, self.start, self.stop = encoder, start, stop

    def __call__(self, ids: Tensor, scores: Tensor, **more: Any) -> Tensor:
        texts = [self.encoder.text(row[self.start :].tolist()) for row in ids]
        return torch.tensor([_cut(text, self.stop) >= 0 for text in texts], device=ids.device)


class _Streamer:
    """Hands a text on piece by piece, as far as it is settled."""

    def __init__(self, encoder: Encoder, on_text: OnText, stop: Sequence[str]) -> None:
        self.encoder, self.on_text, self.stop = encoder, on_text, stop
        self.ids: list[int] | None = None
        self.sent = 0
        self.over = False

    def put(self, ids: Tensor) -> None:
        if self.ids is None:  # the prompt comes first
            self.ids = []
            return
        self.ids += ids.flatten().tolist()
        self._send(end=False)

    def end(self) -> None:
        self._send(end=True)

    def _send(self, end: bool) -> None:
        ends = set(writer_of(self.encoder).ends)
        text = self.encoder.text([token for token in self.ids or [] if token not in ends])
        text, over = settled(text, self.stop, end)
        if not self.over and len(text) > self.sent:
            self.on_text(text[self.sent :])
            self.sent = len(text)
        self.over = self.over or over


def _chosen(base: Base, row: Encoding, decoding: Decoding, hooked: HookedModel | None) -> TextPrediction:
    """Return the likeliest of some texts after a prompt, with the probability of each among them."""
    encoder = base.encoder
    outputs = outputs_of(encoder, decoding.choices)
    rows = [Encoding(np.concatenate([row.ids, out]), None, False, Output(len(row.ids))) for out in outputs]
    read = len(row.ids) if writer_of(encoder).start is None else 0
    if max(map(len, outputs)) + read > base.limit:
        raise UsageError(f"a prompt with a choice after it is longer than {base.limit:,} tokens.", hint="Shorten it.")
    hidden, _ = base.hidden(rows, hooked)
    total = []
    for states, each in zip(hidden, rows, strict=True):
        start, end = len(row.ids) - 1, len(each.ids) - 1
        logits = torch.nn.functional.linear(states[start:end], base.words(hooked)).float().log_softmax(-1)
        target = torch.from_numpy(each.ids[start + 1 :].astype(np.int64)).to(logits.device)
        total.append(logits.gather(1, target[:, None]).sum())
    among = torch.stack(total).softmax(0).tolist()
    best = int(np.argmax(among))
    scores = dict(zip(decoding.choices, among, strict=True))
    return TextPrediction(decoding.choices[best], True, len(outputs[best]), scores)
