"""Run model.onnx on a question and a text: python predict.py "a question?" "the text with the answer"

Needs onnxruntime, tokenizers and numpy. Prints the answer as JSON, "" if there is none; a text is cut at the model's
longest input.
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


def predict(question, text):
    row = TOKENIZER.encode(question, text)
    parts = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    inputs = {each.name: np.array([parts[each.name]], dtype=np.int64) for each in SESSION.get_inputs()}
    start, end = SESSION.run(None, inputs)[0][0].T  # a logit for each token to be the first, or the last, of the answer
    at = [i for i, of in enumerate(row.sequence_ids) if of == 1]
    spans = [(start[i] + end[j], i, j) for i in at for j in at if i <= j < i + ABOUT["longest"]]
    score, first, last = max(spans, default=(-np.inf, 0, 0))
    if not spans or (ABOUT["impossible"] and start[0] + end[0] - score > ABOUT["threshold"]):
        return {"answer": "", "start": None, "end": None}
    begin, stop = row.offsets[first][0], row.offsets[last][1]
    return {"answer": text[begin:stop].strip(), "start": begin, "end": stop}


if __name__ == "__main__":
    print(json.dumps(predict(*sys.argv[1:3]), ensure_ascii=False))
