"""Run model.onnx on texts, or on pairs with a tab between: python predict.py "a text" ...   (or a text a line on stdin)

Needs onnxruntime, tokenizers and numpy. Prints a line of JSON for each text.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

HERE = Path(__file__).parent
ABOUT = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))
TOKENIZER = Tokenizer.from_file(str(HERE / "tokenizer.json"))
SESSION = onnxruntime.InferenceSession(str(HERE / "model.onnx"), providers=["CPUExecutionProvider"])


def logits(texts):
    rows = TOKENIZER.encode_batch(texts)
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    names = [each.name for each in SESSION.get_inputs()]
    inputs = {name: np.array([getattr(row, parts[name]) for row in rows], dtype=np.int64) for name in names}
    return SESSION.run(None, inputs)[0].astype(np.float64) * ABOUT["unit"] + ABOUT["mean"]


def predict(texts):
    for z in logits(texts):
        if ABOUT["kind"] in ("regress", "multioutput"):
            yield dict(zip(ABOUT["labels"], z.tolist(), strict=True))
        else:
            p = 1 / (1 + np.exp(-z))
            likely = p >= np.array(ABOUT["thresholds"])
            labels = [label for label, yes in zip(ABOUT["labels"], likely, strict=True) if yes]
            yield {"labels": labels, "scores": dict(zip(ABOUT["labels"], p.tolist(), strict=True))}


if __name__ == "__main__":
    lines = sys.argv[1:] or sys.stdin.read().splitlines()
    for found in predict([tuple(line.split("\t", 1)) if "\t" in line else line for line in lines]):
        print(json.dumps(found, ensure_ascii=False))
