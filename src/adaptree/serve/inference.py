"""The Open Inference Protocol, version 2, which clients of KServe and Triton speak: tensors in, tensors out.

A task is a model with an input 'text' of BYTES, and 'text_pair' where it takes two texts. Its outputs are 'label' and
'score', or 'value' for numbers; answers of other kinds are an output 'prediction', each as JSON. Inputs may also
come as Triton's binary data behind the JSON; outputs are always JSON.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from adaptree.reports.json_text import json_text
from adaptree.serve.problems import Problem
from adaptree.serve.receive import parse_as
from adaptree.serve.schemas import InferRequest, Tensor

LENGTH_HEADER = "inference-header-content-length"
OUTPUTS = {"classify": {"label": "BYTES", "score": "FP64"}, "regress": {"value": "FP64"}}
"""The outputs of a kind, and their types."""


def read(data: bytes, header_length: str | None) -> InferRequest:
    """Return a request; its tensors have their data, also where it came in binary behind the JSON."""
    if header_length is None:
        return parse_as(InferRequest, data)
    if not header_length.isdecimal() or int(header_length) > len(data):
        raise _bad(f"the header {LENGTH_HEADER} is not a length within the body")
    wanted = parse_as(InferRequest, data[: int(header_length)])
    rest = data[int(header_length) :]
    for tensor in wanted.inputs:
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest):
            raise _bad(f"'{tensor.name}' has a binary_data_size that is not a length within the body")
        tensor.data, rest = list(_strings(rest[:size])), rest[size:]
    return wanted


def _strings(data: bytes) -> Any:
    """Yield the texts of a BYTES tensor: each after its length, a little-endian uint32."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise _bad("a tensor's binary data ends within a length")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise _bad("a tensor's binary data ends within a text")
        try:
            yield data[at : at + size].decode()
        except UnicodeDecodeError:
            raise _bad("a text is not UTF-8") from None
        at += size


def inputs_of(wanted: InferRequest) -> list[Any]:
    """Return the texts, or pairs of texts, of a request; raise a Problem for other tensors."""
    found = {tensor.name: _texts(tensor) for tensor in wanted.inputs}
    if len(found) < len(wanted.inputs) or "text" not in found:
        raise _bad("the inputs are 'text', and 'text_pair' for a task that takes two texts")
    if "text_pair" not in found:
        return found["text"]
    if len(found["text"]) != len(found["text_pair"]):
        raise _bad("'text' and 'text_pair' differ in length")
    return [list(pair) for pair in zip(found["text"], found["text_pair"], strict=True)]


def _texts(tensor: Tensor) -> list[str]:
    data = [text for each in tensor.data for text in ([each] if isinstance(each, str) else each)]
    if math.prod(tensor.shape) != len(data):
        raise _bad(f"the shape of '{tensor.name}' is not that of its data")
    return data


def answer(task: str, wanted: InferRequest, predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer's tensors: all, or those that are asked for."""
    outputs = {tensor["name"]: tensor for tensor in _tensors(predictions)}
    if wanted.outputs is not None:
        names = [each.name for each in wanted.outputs]
        if unknown := [name for name in names if name not in outputs]:
            raise _bad(f"no output '{unknown[0]:.60}': there is {', '.join(outputs)}")
        outputs = {name: outputs[name] for name in names}
    name, _, version = task.partition("@")
    found: dict[str, Any] = {"model_name": name, "outputs": list(outputs.values())}
    if version:
        found["model_version"] = version
    return found | ({"id": wanted.id} if wanted.id else {})


def _tensors(predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    count = len(predictions)

    def tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": [count], "data": data}

    if all("label" in each for each in predictions):
        return [
            tensor("label", "BYTES", [each["label"] if each["label"] is not None else "" for each in predictions]),
            tensor("score", "FP64", [each["score"] for each in predictions]),
        ]
    if all("value" in each for each in predictions):
        return [tensor("value", "FP64", [each["value"] for each in predictions])]
    return [tensor("prediction", "BYTES", [json_text(each) for each in predictions])]


def outputs_of(kind: str) -> list[dict[str, Any]]:
    """Return what a kind's answers are, as the protocol describes tensors."""
    found = OUTPUTS.get(kind, {"prediction": "BYTES"})
    return [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in found.items()]


def _bad(what: str) -> Problem:
    return Problem(422, "bad_input", f"{what}.", hint="GET /v2/models/{task} says what it takes.")
