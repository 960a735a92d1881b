"""Run model.onnx on a text and its choices: python predict.py "a text" "one choice" "another" ...

Needs onnxruntime, tokenizers and numpy. Prints the choice as JSON. A choice goes into the text's one "_", or beside it.
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


def predict(text, choices):
    filled = text.count("_") == 1
    rows = TOKENIZER.encode_batch([text.replace("_", choice) if filled else (text, choice) for choice in choices])
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    names = [each.name for each in SESSION.get_inputs()]
    inputs = {name: np.array([getattr(row, parts[name]) for row in rows], dtype=np.int64) for name in names}
    z = SESSION.run(None, inputs)[0][:, 0].astype(np.float64) * ABOUT["unit"][0]
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return {"choice": choices[p.argmax()], "number": int(p.argmax()), "score": p.max().item(), "scores": p.tolist()}


if __name__ == "__main__":
    print(json.dumps(predict(sys.argv[1], sys.argv[2:]), ensure_ascii=False))
