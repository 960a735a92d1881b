"""What int8 would do to a language model: time, perplexity, and the share of tokens that stay the same.

    python -m benchmarks.int8_writing --data DIR

Why tasks that write refuse --int8; docs/performance.md quotes it.
"""

from __future__ import annotations

import argparse
import copy
import json
import lzma
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.core.int8 import quantise
from adaptree.models.loading import load_base

TEXTS, PROMPT, NEW, ROUNDS = 64, 20, 16, 2


class Int8Weights(nn.Linear):
    """A linear map whose weights alone are in int8, by torch's own kernel."""

    scale: Tensor
    whole: Tensor

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(-1, input.shape[-1]).contiguous()
        return torch._weight_int8pack_mm(flat, self.whole, self.scale).view(*input.shape[:-1], -1)


def quantise_weights(module: nn.Module) -> None:
    """Keep the weights of every linear map in a module in int8."""
    for part in module.modules():
        if type(part) is nn.Linear:
            weight = part.weight.detach()
            part.__class__ = Int8Weights
            part.scale = weight.abs().amax(1) / 127
            part.whole = (weight / part.scale[:, None]).round().to(torch.int8).contiguous()


def write(model: Any, rows: int) -> Tensor:
    """Return the tokens that are written after prompts of random tokens."""
    ids = torch.tensor(np.random.default_rng(0).integers(1000, 20_000, (rows, PROMPT)))
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        found: Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    return found[:, PROMPT:]


def read(model: Any, texts: list[Any]) -> tuple[float, list[int]]:
    """Return the perplexity of some texts, and the likeliest next token at each place of them."""
    total, likeliest = [], []
    with torch.inference_mode():
        for ids in texts:
            row = torch.from_numpy(ids.astype(np.int64))[None]
            scores = model(row).logits[0, :-1].float().log_softmax(-1)
            total += scores.gather(1, row[0, 1:, None])[:, 0].tolist()
            likeliest += scores.argmax(-1).tolist()
    return math.exp(-float(np.mean(total))), likeliest


def timed(do: Callable[[], Any]) -> float:
    """Return the processor seconds of a call."""
    began = time.process_time()
    do()
    return round(time.process_time() - began, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.int8_writing")
    parser.add_argument("--data", type=Path, default=os.environ.get("ADAPTREE_DATA", "data"), help="holds multi30k/")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    base = load_base("smollm")
    models = {"fp32": base.hooked.model, "int8": copy.deepcopy(base.hooked.model)}
    models["int8, weights alone"] = copy.deepcopy(base.hooked.model)
    quantise(models["int8"].model)  # the output layer stays as it is
    quantise_weights(models["int8, weights alone"].model)
    with lzma.open(chosen.data / "multi30k" / "test.jsonl.xz", "rt") as file:
        texts = [json.loads(line)["en"] for line in file][:TEXTS]
    encoded = [pieces.ids for pieces in base.encoder.pieces(texts)]
    exact, likeliest = write(models["fp32"], 16), np.array(read(models["fp32"], encoded)[1])
    for name, model in models.items():
        took = {rows: [timed(partial(write, model, rows)) for _ in range(ROUNDS)] for rows in (1, 16)}
        same = float((write(model, 16) == exact).float().mean())
        perplexity, tokens = read(model, encoded)
        print(json.dumps({
            "model": name, "seconds by texts": took, "perplexity": round(perplexity, 1),
            "next tokens as in fp32": round(float(np.mean(likeliest == np.array(tokens))), 3),
            "written tokens as in fp32": round(same, 3),
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
