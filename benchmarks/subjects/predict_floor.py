"""Answers for a file of texts in plain PyTorch: what floor.py has trained."""

from __future__ import annotations

import json
from pathlib import Path

from floor import Classifier, answers, encode
from measured import Measured, accuracy, arguments, read
from safetensors.torch import load_file
from transformers import BertModel


def main() -> None:
    asked = arguments(("texts", ""), ("task", ""))
    measured = Measured()
    base = BertModel.from_pretrained(asked.base)
    measured.base_is_loaded(base)
    model = Classifier(base, asked.method, asked.size)
    model.load_state_dict(load_file(Path(asked.task) / "task.safetensors"), strict=False)
    texts, wanted = read(asked.texts)
    with measured.phase("answer"):
        found = answers(model, encode(asked.base, texts, asked.max_length))
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps({'label': label})}\n" for label in found))
    measured.say(score=accuracy(found, wanted))


if __name__ == "__main__":
    main()
