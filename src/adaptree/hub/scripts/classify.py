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
PARTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

lines = sys.argv[1:] or sys.stdin.read().splitlines()
rows = TOKENIZER.encode_batch([tuple(line.split("\t", 1)) if "\t" in line else line for line in lines])
names = [each.name for each in SESSION.get_inputs()]
inputs = {name: np.array([getattr(row, PARTS[name]) for row in rows], dtype=np.int64) for name in names}
for z in SESSION.run(None, inputs)[0].astype(np.float64) * ABOUT["unit"] + ABOUT["mean"]:
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    scores = dict(zip(map(str, ABOUT["labels"]), p.tolist(), strict=True))
    print(json.dumps({"label": ABOUT["labels"][p.argmax()], "score": p.max(), "scores": scores}, ensure_ascii=False))
