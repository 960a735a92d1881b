"""Run model.onnx on texts with the mask token in them: python predict.py "a [MASK] text" ...

Needs onnxruntime, tokenizers and numpy. Prints for each text, as JSON, the five likeliest words of each mask.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

HERE = Path(__file__).parent
MASK = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))["mask_id"]
TOKENIZER = Tokenizer.from_file(str(HERE / "tokenizer.json"))
SESSION = onnxruntime.InferenceSession(str(HERE / "model.onnx"), providers=["CPUExecutionProvider"])


def predict(text):
    row = TOKENIZER.encode(text)
    parts = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    inputs = {each.name: np.array([parts[each.name]], dtype=np.int64) for each in SESSION.get_inputs()}
    for z in SESSION.run(None, inputs)[0][0][np.array(row.ids) == MASK]:
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        yield [{"word": TOKENIZER.id_to_token(int(i)), "score": p[i].item()} for i in np.argsort(-p)[:5]]


if __name__ == "__main__":
    for line in sys.argv[1:] or sys.stdin.read().splitlines():
        print(json.dumps(list(predict(line)), ensure_ascii=False))
