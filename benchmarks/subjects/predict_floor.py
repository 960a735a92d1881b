"""Predict for a file of texts in plain PyTorch, with the model that floor.py has trained."""

from __future__ import annotations

import json
from pathlib import Path

from floor import Classifier, answers, encode
from measured import Measured, accuracy, arguments, read
from safetensors.torch import load_file
from transformers import BertModel


def main() -> None:
    options = arguments(("texts", ""), ("task", ""))
    measured = Measured()
    base = BertModel.from_pretrained(options.base)
    measured.base_is_loaded(base)
    model = Classifier(base, options.method, options.size)
    model.load_state_dict(load_file(Path(options.task) / "task.safetensors"), strict=False)
    texts, wanted = read(options.texts)
    with measured.phase("answer"):
        found = answers(model, encode(options.base, texts, options.max_length))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps({'label': label})}\n" for label in found))
    measured.say(score=accuracy(found, wanted))


if __name__ == "__main__":
    main()
