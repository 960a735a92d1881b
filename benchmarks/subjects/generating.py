"""Shared by the scripts that train a language model to write: the rows, as prompts and outputs, and what is printed.

It runs in every environment, ours and the peers'. Times are processor seconds of one thread, which other work on the
machine leaves alone.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from measured import arguments

TEMPLATE = "{}\n"
NEW = 32
"""Tokens that are written after each prompt at most."""
PROMPTS = 16
"""Prompts that are continued at once."""


def options() -> Namespace:
    """Read the options of a training from the command line, and compute with one thread."""
    import torch

    torch.set_num_threads(1)
    return arguments(("tuned", False))


def pairs(path: str) -> list[tuple[str, str]]:
    """Return the first and the second half of each text, by words; texts of one word are left out."""
    with Path(path).open() as file:
        words = [json.loads(line)["text"].split() for line in file]
    return [(" ".join(w[: len(w) // 2]), " ".join(w[len(w) // 2 :])) for w in words if len(w) > 1]


def prompts(path: str) -> list[str]:
    """Return the prompts that are continued: the first ones of a file."""
    return [first for first, _ in pairs(path)][:PROMPTS]


def encode(folder: str, rows: list[tuple[str, str]], end: int, most: int) -> list[tuple[list[int], int]]:
    """Return the tokens of each prompt and its output, and where the output begins."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    found = []
    for first, second in rows:
        start = tokenizer.encode(TEMPLATE.format(first), add_special_tokens=False).ids
        ids = start + tokenizer.encode(second, add_special_tokens=False).ids + [end]
        found.append((ids[:most], min(len(start), most - 1)))
    return found
