"""Run model.onnx on texts: python predict.py "a text" ...   Prints a line of JSON for each: its words with their tags.

Needs onnxruntime, tokenizers and numpy. A text is cut at the model's longest input; a word has its likeliest tag.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

HERE = Path(__file__).parent
LABELS = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))["labels"]
TOKENIZER = Tokenizer.from_file(str(HERE / "tokenizer.json"))
SESSION = onnxruntime.InferenceSession(str(HERE / "model.onnx"), providers=["CPUExecutionProvider"])


def predict(texts):
    rows = TOKENIZER.encode_batch(texts)
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    names = [each.name for each in SESSION.get_inputs()]
    inputs = {name: np.array([getattr(row, parts[name]) for row in rows], dtype=np.int64) for name in names}
    for text, row, z in zip(texts, rows, SESSION.run(None, inputs)[0], strict=True):
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        found, last = [], None
        for at, word in enumerate(row.word_ids):
            if word is not None and word != last:
                start, end = row.offsets[at][0], row.offsets[len(row.word_ids) - 1 - row.word_ids[::-1].index(word)][1]
                found.append({"word": text[start:end], "tag": LABELS[p[at].argmax()], "score": p[at].max().item()})
            last = word
        yield {"text": text, "words": found}


if __name__ == "__main__":
    for each in predict(sys.argv[1:] or sys.stdin.read().splitlines()):
        print(json.dumps(each, ensure_ascii=False))
