"""Predict for a file of texts with adapters.

As documented: texts in their order, batches of 32 padded to the longest. With --sorted as someone tunes it: ordered by
length, batches of 64, inference mode.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from adapters import AutoAdapterModel
from measured import Measured, accuracy, arguments, read
from transformers import AutoTokenizer


def documented(model: Any, tokenizer: Any, texts: list[str], max_length: int) -> list[int]:
    found: list[int] = []
    for start in range(0, len(texts), 32):
        inputs = tokenizer(
            texts[start : start + 32], return_tensors="pt", padding=True, truncation=True, max_length=max_length
        )
        with torch.no_grad():
            found += model(**inputs).logits.argmax(-1).tolist()
    return found


def tuned(model: Any, tokenizer: Any, texts: list[str], max_length: int) -> list[int]:
    encoded = tokenizer(texts, truncation=True, max_length=max_length)
    order = sorted(range(len(texts)), key=lambda i: len(encoded["input_ids"][i]))
    found = [0] * len(texts)
    with torch.inference_mode():
        for start in range(0, len(texts), 64):
            at = order[start : start + 64]
            inputs = tokenizer.pad({key: [of[i] for i in at] for key, of in encoded.items()}, return_tensors="pt")
            for i, label in zip(at, model(**inputs).logits.argmax(-1).tolist(), strict=True):
                found[i] = label
    return found


def main() -> None:
    options = arguments(("texts", ""), ("task", ""), ("sorted", False))
    measured = Measured()
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    model = AutoAdapterModel.from_pretrained(options.base)
    measured.base_is_loaded(model)
    model.load_adapter(options.task, set_active=True)
    model.eval()
    texts, wanted = read(options.texts)
    with measured.phase("answer"):
        found = (tuned if options.sorted else documented)(model, tokenizer, texts, options.max_length)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps({'label': label})}\n" for label in found))
    measured.say(score=accuracy(found, wanted))


if __name__ == "__main__":
    main()
