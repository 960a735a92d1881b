"""The prediction heads of other libraries as ours: where the maths is the same, else with the reason why not.

Our heads are a linear map of a pooled vector, or of every token. Theirs often have a hidden layer before it (tanh in
RoBERTa's and in `adapters`' own, ReLU in DistilBERT's, the pooler in BERT's): a kind's field `hidden` keeps that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adaptree.errors import InteropError
from adaptree.kinds.iob import PLAIN
from adaptree.kinds.kind import DENSE
from adaptree.kinds.tag import Tag

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.models.sites import Sites
    from adaptree.tasks.record import Record

DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
SCORE = ("llama", "mistral", "qwen2", "qwen3")
"""Whose token classifiers call their last map `score`, as all decoders' sequence classifiers do."""
POOLER = "pooler.dense"
SEQUENCE: Mapping[str, tuple[str, str, str]] = {
    "bert": (POOLER, "classifier", "tanh"),
    "roberta": ("classifier.dense", "classifier.out_proj", "tanh"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj", "tanh"),
    "mpnet": ("classifier.dense", "classifier.out_proj", "tanh"),
    "distilbert": ("pre_classifier", "classifier", "relu"),
    **dict.fromkeys(DECODERS, ("", "score", "")),
}
"""The maps of a Hugging Face sequence classifier by architecture: hidden layer, last map, activation between them."""
TO_OURS = {"classification": "classify", "multilabel_classification": "multilabel", "tagging": "tag",
           "question_answering": "answer", "masked_lm": "mlm"}  # fmt: skip
WITHOUT = "Leave the head out: --no-head; or write a whole model: --to transformers"
ATTACH = "Attach it to that model instead: at.attach(model, folder)"


@dataclass(frozen=True)
class Head:
    """A head of another library: as one of ours, or `problem` says why that cannot be."""

    kind: str = ""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Under our names."""
    labels: Sequence[str | int] = ()
    hidden: str = ""
    pooling: str = "first"
    problem: str = ""
    hint: str = ""
    named: Mapping[str, Tensor] = field(default_factory=dict)
    """Under the names of the Hugging Face model that it is of; empty for a head of `adapters`' own classes."""

    @property
    def extra(self) -> dict[str, Any]:
        """What the record of a task with this head holds for its kind."""
        inner = {"hidden": self.hidden} if self.hidden else {}
        if self.kind == "regress":
            return {"mean": 0.0, "std": 1.0, **inner}
        if self.kind == "multilabel":
            return {"threshold": 0.5, **inner}
        if self.kind == "tag":
            return {"scheme": scheme(self.labels)}
        return inner

    def labelled(self, labels: Sequence[str | int]) -> Head:
        """Return the head with the labels that a user gives for its outputs, in their order."""
        if self.kind not in ("classify", "multilabel", "tag"):
            raise InteropError(
                f"a task of kind {self.kind or 'attached'} has no labels to name.", hint="Leave out --labels."
            )
        if len(labels) != len(self.labels) or len(set(map(str, labels))) < len(labels):
            raise InteropError(
                f"the head has {len(self.labels)} outputs, and {len(labels)} labels are given.",
                hint="Give each output one label of its own: --labels 'a, b, c'",
            )
        return _sorted(replace(self, labels=list(labels)))


def scheme(labels: Sequence[str | int]) -> str:
    """Return the scheme of a tagger's labels: IOB2 if all but O begin with B- or I-."""
    return "IOB2" if all(str(label) == "O" or str(label)[:2] in ("B-", "I-") for label in labels) else PLAIN


def _sorted(head: Head) -> Head:
    """Return a tagger with its outputs in the order in which our kind `tag` keeps its labels."""
    if head.kind != "tag" or not head.weights:
        return head
    order = list(Tag.of(head.labels, scheme(head.labels)).labels)
    at = [[str(label) for label in head.labels].index(label) for label in order]
    weights = {name: tensor[at] for name, tensor in head.weights.items()}
    return replace(head, labels=order, weights=weights)


def labels_of(values: Any, count: int) -> list[str | int]:
    """Return the labels of a head's outputs from {label: number}; the numbers themselves where nothing is said."""
    if isinstance(values, Mapping) and sorted(map(str, values.values())) == sorted(map(str, range(count))):
        named = sorted(values, key=lambda label: int(values[label]))
        if named != [f"LABEL_{i}" for i in range(count)]:
            return [str(label) for label in named]
    return list(range(count))


def of_model(
    of: str, named: Mapping[str, Tensor], labels: Any, sites: Sites, backbone: nn.Module, pooler: bool = True
) -> Head:
    """Return the head of a Hugging Face model: `of` is its class's ending, `named` its tensors by the model's names.

    `pooler`: whether the base has a pretrained pooler, and not a random one.
    """
    kind = sites.architecture
    if of == "SequenceClassification":
        if kind not in SEQUENCE:
            return Head(problem=f"the classifier of {kind} reads more than one token's state", hint=ATTACH, named=named)
        inner, outer, hidden = SEQUENCE[kind]
        found = dict(named)
        if inner == POOLER and not any(name.endswith(f"{POOLER}.weight") for name in named):
            if not pooler:
                why = (
                    "its head reads the base's pooler, which this base was saved without: it is random at each loading"
                )
                return Head(
                    problem=why, hint="Save the pooler with it: modules_to_save=['pooler', 'classifier']", named=named
                )
            found |= {
                name: p.detach().float() for name, p in backbone.named_parameters() if name.startswith(f"{POOLER}.")
            }
        pooling = "last" if kind in DECODERS else "first"
        return _two_maps(found, inner, outer, hidden, pooling, labels, named)
    if of == "TokenClassification":
        outer = "score" if kind in SCORE else "classifier"
        return _one_map(named, outer, "tag", labels)
    if of == "QuestionAnswering":
        return _one_map(named, "qa_outputs", "answer", labels)
    why = f"a head of class …{of}" if of else "its files do not say what its head is for"
    hint = "Write task_type into its adapter_config.json: SEQ_CLS or TOKEN_CLS." if not of else ATTACH
    return Head(problem=f"{why} is none of ours" if of else why, hint=hint, named=named)


def _find(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor of a name, whatever is in front of it."""
    return next((t for key, t in tensors.items() if key == name or key.endswith(f".{name}")), None)


def _one_map(tensors: Mapping[str, Tensor], outer: str, kind: str, labels: Any) -> Head:
    import torch

    weight = _find(tensors, f"{outer}.weight")
    if weight is None:
        return Head(problem=f"its head has no '{outer}'", hint=ATTACH, named=tensors)
    bias = _find(tensors, f"{outer}.bias")
    weights = {"head.weight": weight, "head.bias": torch.zeros(len(weight)) if bias is None else bias}
    names = labels_of(labels, len(weight)) if kind != "answer" else []
    return _sorted(Head(kind=kind, weights=weights, labels=names, named=tensors))


def _two_maps(
    tensors: Mapping[str, Tensor], inner: str, outer: str, hidden: str, pooling: str, labels: Any,
    named: Mapping[str, Tensor], kind: str = "classify",
) -> Head:  # fmt: skip
    import torch

    maps = {"head": outer, **({DENSE: inner} if inner else {})}
    weights: dict[str, Tensor] = {}
    for ours, theirs in maps.items():
        weight, bias = (_find(tensors, f"{theirs}.{part}") for part in ("weight", "bias"))
        if weight is None:
            return Head(
                problem=f"'{theirs}' of its head was not saved, and is random wherever the model is loaded",
                hint=f"Save it: modules_to_save=['{inner or outer}', '{outer}']; or use at.attach(model, folder)",
                named=named,
            )  # fmt: skip
        weights |= {f"{ours}.weight": weight, f"{ours}.bias": torch.zeros(len(weight)) if bias is None else bias}
    count = len(weights["head.weight"])
    if count == 1 and kind == "classify":
        return Head(kind="regress", weights=weights, hidden=hidden if inner else "", pooling=pooling, named=named)
    names: list[str | int] = labels_of(labels, count)
    names = list(map(str, names)) if kind == "multilabel" else names
    return Head(kind, weights, names, hidden if inner else "", pooling, named=named)


def flexible(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], sites: Sites, backbone: nn.Module, pooler: bool = True
) -> Head:
    """Return a head of `adapters`' own model classes; its tensors are numbered by their place in a sequence."""
    kind = str(config.get("head_type"))
    if kind not in TO_OURS:
        return Head(problem=f"its head is of type '{kind}', and we have none such")
    numbered: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        _, place, part = name.rsplit(".", 2)
        if not place.isdecimal():
            return Head(problem=f"its head has a tensor '{name}' that none of type '{kind}' has")
        numbered.setdefault(int(place), {})[part] = tensor
    places = [f"{place}.{part}" for place in sorted(numbered) for part in numbered[place]]
    flat = {f"{i}.{part}": t for i, place in enumerate(sorted(numbered)) for part, t in numbered[place].items()}
    ours, labels = TO_OURS[kind], config.get("label2id")
    if ours == "mlm":
        return _words(config, flat, backbone)
    layers, activation = config.get("layers"), config.get("activation_function")
    if layers != len(numbered) or layers not in (1, 2):
        return Head(problem=f"its head has {layers} layers ({', '.join(places)}), and ours have one or two")
    if ours in ("tag", "answer"):
        if layers == 2:
            return Head(problem=f"its head of type '{kind}' has a hidden layer, and ours has none")
        return replace(_one_map(flat, "0", ours, labels), named={})
    if sites.architecture in ("t5", "bart"):
        return Head(problem=f"its head reads the decoder's last state, and ours {sites.architecture}'s encoder")
    pooling = "last" if sites.architecture in DECODERS else "first"
    inner, hidden = ("0", str(activation)) if layers == 2 else ("", "")
    if config.get("use_pooler"):
        if layers == 2 or sites.architecture != "bert" or not pooler:
            return Head(problem="its head reads the base's pooler, which this base does not have pretrained")
        flat |= {name: p.detach().float() for name, p in backbone.named_parameters() if name.startswith(f"{POOLER}.")}
        inner, hidden = POOLER, "tanh"
    if inner and hidden not in ("tanh", "relu", "gelu"):
        return Head(problem=f"the hidden layer of its head has the activation '{hidden}'")
    return _two_maps(flat, inner, str(layers - 1), hidden, pooling, labels, {}, ours)


def _words(config: Mapping[str, Any], flat: Mapping[str, Tensor], backbone: Any) -> Head:
    """Return a head for masked words: a transform, a norm, and the base's own embeddings with a bias."""
    import torch

    places = {"0": "head.dense", "1": "head.norm"}
    if config.get("layers") != 2 or not config.get("layer_norm") or config.get("activation_function") != "gelu":
        return Head(problem="its head for masked words is not BERT's: a GELU layer and a norm before the embeddings")
    if "2.weight" in flat and not torch.equal(
        flat["2.weight"], backbone.get_input_embeddings().weight.detach().float()
    ):
        return Head(problem="its head for masked words has output embeddings of its own, and ours has the base's")
    weights = {f"{ours}.{part}": flat[f"{i}.{part}"] for i, ours in places.items() for part in ("weight", "bias")}
    bias = flat.get("2.bias")
    vocabulary = backbone.get_input_embeddings().weight.shape[0]
    return Head(kind="mlm", weights={**weights, "head.bias": torch.zeros(vocabulary) if bias is None else bias})


@dataclass(frozen=True)
class ModelHead:
    """One of our heads as that of a Hugging Face model."""

    ending: str
    """Of the model's class, such as SequenceClassification; '' where the task does not say."""
    named: Mapping[str, Tensor]
    """Its tensors by the model's names, the pooler's without the backbone's prefix."""
    reading: str = ""
    """How its logits become ours, as a line of Python over `logits` and `mask`; '' where they are the same."""

    @property
    def modules(self) -> list[str]:
        """The modules that hold them, as peft's modules_to_save names them."""
        return list(dict.fromkeys(name.partition(".")[0] for name in self.named))


READINGS = {
    "first": "logits[:, 0]",
    "last": "logits[range(len(mask)), mask.sum(1) - 1]",
    "mean": "(logits * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
}
"""A linear map of a pooled vector is the same pooling of the map of every token."""


def for_model(record: Record, weights: Mapping[str, Tensor], sites: Sites) -> ModelHead:
    """Return a task's head as that of a Hugging Face class; raise InteropError where none computes the same."""
    kind = sites.architecture
    own = {name: tensor for name, tensor in weights.items() if name.startswith("head.")}
    if record.kind == "attached":
        return ModelHead("", {name.removeprefix("head."): tensor for name, tensor in own.items()})
    if record.kind == "generate":  # the model's own output layer
        return ModelHead("CausalLM", {})
    own = unscaled(record, own)
    outer = {part: own[f"head.{part}"] for part in ("weight", "bias") if f"head.{part}" in own}
    token = "score" if kind in SCORE else "classifier"
    hidden = record.extra.get("hidden", "")
    if record.kind == "answer" and kind not in SCORE:
        return ModelHead("QuestionAnswering", {f"qa_outputs.{part}": t for part, t in outer.items()})
    if record.kind not in ("classify", "regress", "multilabel", "multioutput", "tag"):
        raise InteropError(f"no Hugging Face class has the head of a task of kind {record.kind}.", hint=WITHOUT)
    if hidden:
        inner, last, activation = SEQUENCE.get(kind, ("", "", ""))
        if not inner or activation != hidden or record.pooling != "first":
            raise InteropError(f"{kind}'s classifier has another hidden layer than this task's head.", hint=WITHOUT)
        dense = {f"{inner}.{part}": own[f"{DENSE}.{part}"] for part in ("weight", "bias")}
        return ModelHead("SequenceClassification", {**dense, **{f"{last}.{part}": t for part, t in outer.items()}})
    if kind in DECODERS and record.kind != "tag" and record.pooling == "last" and not bool(outer["bias"].any()):
        return ModelHead("SequenceClassification", {"score.weight": outer["weight"]})
    reading = "" if record.kind == "tag" else READINGS[record.pooling]
    return ModelHead("TokenClassification", {f"{token}.{part}": t for part, t in outer.items()}, reading)


def unscaled(record: Record, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a head whose outputs are the numbers themselves, where ours gives standardised ones."""
    import torch

    if record.kind not in ("regress", "multioutput"):
        return dict(own)
    words = ("mean", "std") if record.kind == "regress" else ("means", "stds")
    mean, std = (torch.tensor(record.extra[word], dtype=torch.float64).reshape(-1) for word in words)
    weight, bias = own["head.weight"].double(), own["head.bias"].double()
    return {**own, "head.weight": (weight * std[:, None]).float(), "head.bias": (bias * std + mean).float()}
