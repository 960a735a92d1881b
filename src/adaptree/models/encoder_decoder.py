"""Bases in two stacks that write: an encoder reads the prompt, a decoder writes the output.

A row has the prompt's tokens and the output's after them, as where one stack does both. The state from which a token of
the output is told stands in the place of the token before it, so that a kind finds it there whatever the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptree.data.batch import canonical, collate
from adaptree.data.encode import Encoding
from adaptree.models.hooks import HookedModel


def writes(hooked: HookedModel) -> bool:
    """Return whether a model is an encoder and a decoder with an output layer."""
    model: Any = hooked.model
    return bool(getattr(model.config, "is_encoder_decoder", False)) and model.get_output_embeddings() is not None


def hidden(
    rows: Sequence[Encoding], hooked: HookedModel, start: int, pad_id: int, device: Any = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return states (B, T, d) from which the outputs' tokens are told, and the mask of the rows' tokens (B, T).

    `start` is the token that the decoder begins with. Of a row without an output, the state at its last token tells
    the first one.
    """
    backbone: Any = hooked.backbone
    cuts = [_cut(row) for row in rows]
    read = collate([Encoding(row.ids[:at], None, False) for row, at in zip(rows, cuts, strict=True)], pad_id, device)
    given = [Encoding(np.array([start, *row.ids[at:-1]]), None, False) for row, at in zip(rows, cuts, strict=True)]
    told = collate(given, pad_id, device)
    encoded = backbone.encoder(**read)[0]
    states: Tensor = backbone.decoder(
        **told, encoder_hidden_states=encoded, encoder_attention_mask=read["attention_mask"], use_cache=False
    )[0]
    if getattr(backbone.config, "scale_decoder_outputs", False):  # T5's output layer, where it is the input's, too
        states = states * states.shape[-1] ** -0.5
    mask = collate(rows, pad_id, device)["attention_mask"]
    counts = [len(each.ids) for each in given]
    batch = torch.from_numpy(np.repeat(np.arange(len(rows)), counts)).to(states.device)
    place = torch.from_numpy(np.concatenate([np.arange(n) for n in counts])).to(states.device)
    before = torch.from_numpy(np.repeat(np.array(cuts) - 1, counts)).to(states.device)
    out = states.new_zeros(*mask.shape, states.shape[-1])
    return out.index_put((batch, before + place), states[batch, place]), mask


def alike(rows: Sequence[Encoding], at: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield positions of rows whose prompts, and whose outputs, have one canonical length, as both are padded."""
    sizes = [(canonical(cut := _cut(rows[i])), canonical(max(1, len(rows[i].ids) - cut))) for i in at]
    for size in sorted(set(sizes)):
        yield at[[each == size for each in sizes]]


def _cut(row: Encoding) -> int:
    return len(row.ids) if row.at is None else int(row.at.start)
