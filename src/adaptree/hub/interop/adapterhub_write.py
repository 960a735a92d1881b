"""A task's files as `adapters` 1.x names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adaptree import compose
from adaptree.errors import InteropError
from adaptree.hub.interop import adapterhub, adapterhub_fusion, heads
from adaptree.hub.interop.files import as_bytes
from adaptree.kinds.kind import DENSE
from adaptree.methods import Method, parse
from adaptree.methods.adapterhub import BranchFusion, LayerAdapter, StreamParallel
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.fusion import Fusion
from adaptree.methods.houlsby import Houlsby
from adaptree.methods.parallel import HoulsbyParallel, ParallelAdapter, ScaledParallel
from adaptree.methods.pfeiffer import Pfeiffer
from adaptree.methods.variants import HoulsbyAttention, HoulsbyFeedforward
from adaptree.reports.json_text import json_text
from adaptree.tasks.record import FUSES, Record
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.hub.interop.write import Target
    from adaptree.models.sites import Site

VERSION = "adapters.1.3.0"
"""Of the library whose files these are."""
INSIDE = {"attention": "attention.output", "feedforward": "output"}
BESIDE = {"attention": "attention_adapters", "feedforward": "output_adapters"}
T5 = {"attention": "layer.0", "cross": "layer.1", "feedforward": "layer.2"}
HOLDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "bert": ("BertAdapterModel", INSIDE),
    "roberta": ("RobertaAdapterModel", INSIDE),
    "xlm-roberta": ("XLMRobertaAdapterModel", INSIDE),
    "electra": ("ElectraAdapterModel", INSIDE),
    "distilbert": ("DistilBertAdapterModel", BESIDE),
    "gpt2": ("GPT2AdapterModel", BESIDE),
    "llama": ("LlamaAdapterModel", BESIDE),
    "mistral": ("MistralAdapterModel", BESIDE),
    "t5": ("T5AdapterModel", T5),
}
"""By architecture: the library's model class, and the module within a layer that holds each sublayer's adapter."""
IDENTITY = 1e-6
"""How far a fusion's V may be from the identity for the two forms of fusion to be one."""


def files(task: Task, target: Target, head: bool) -> dict[str, bytes]:
    """Return the files of a task, by their paths in its folder."""
    if target.sites.architecture not in HOLDERS:
        raise InteropError(
            f"adapters has no class for {target.sites.architecture}, or none whose adapters are ours.",
            hint="Write a whole model: --to transformers",
        )
    if task.record.extra.get(FUSES):
        return _fusion(task, target, head)
    name = task.record.name.replace("/", "-")
    found = _adapter(parse(task.record.method), task.weights, name, target)
    mine = _head(task.record, task.weights, name, target) if head else {}
    return found | mine | {"README.md": _card(task, target, bool(mine), "load_adapter").encode()}


def _json(values: Any) -> bytes:
    return (json_text(values, indent=2, sort_keys=True) + "\n").encode()


def _about(target: Target, name: str | None, **more: Any) -> dict[str, Any]:
    model = target.model
    return {
        "model_type": target.sites.architecture,
        "hidden_size": target.sites.sites[0].width,
        "model_name": target.name,
        "model_class": HOLDERS[target.sites.architecture][0] if model is None else type(model).__name__,
        "name": name,
        "version": VERSION,
        **more,
    }


def _adapter(method: Method, v: Mapping[str, Tensor], name: str, target: Target) -> dict[str, bytes]:
    sites = target.sites
    settings = _settings(method, target)
    assert isinstance(method, Bottleneck)
    _check_norms(method, v, target)
    size = method.width(method._sites(sites)[0])
    settings |= {
        "non_linearity": method.activation,
        "reduction_factor": _reduction(sites.sites[0].width, size),
        "leave_out": [layer for layer in range(sites.depth) if layer not in method.chosen(sites)],
        "ln_before": False,
        "ln_after": False,
        "phm_layer": False,
        "use_gating": False,
        "original_ln_after": True,
        "residual_before_ln": True,
        "adapter_residual_before_ln": False,
        "dropout": 0.0,
    }
    tensors: dict[str, Tensor] = {}
    for site in method._sites(sites):
        module = f"{_module(site, target)}.adapters.{name}"
        tensors |= {
            f"{module}.adapter_down.0.weight": v[f"{site.name}.down"].T,
            f"{module}.adapter_down.0.bias": v[f"{site.name}.down_bias"][0],
            f"{module}.adapter_up.weight": v[f"{site.name}.up"].T,
            f"{module}.adapter_up.bias": v[f"{site.name}.up_bias"][0],
        }
    if settings.get("inv_adapter"):
        front = f"{_prefix(target)}invertible_adapters.{name}"
        for ours, theirs in (("f", "F"), ("g", "G")):
            p = {key: v[f"invertible.{ours}.{key}"] for key in ("down", "down_bias", "up", "up_bias")}
            tensors |= {f"{front}.{theirs}.0.weight": p["down"].T, f"{front}.{theirs}.0.bias": p["down_bias"][0]}
            tensors |= {f"{front}.{theirs}.2.weight": p["up"].T, f"{front}.{theirs}.2.bias": p["up_bias"][0]}
    return {
        adapterhub.CONFIG: _json(_about(target, name, config=settings)),
        adapterhub.SAFE: as_bytes(tensors),
    }


def _prefix(target: Target) -> str:
    return f"{target.backbone.base_model_prefix}."


def _module(site: Site, target: Target) -> str:
    """Return the module of a model with a head that holds a site's adapter."""
    roles = HOLDERS[target.sites.architecture][1]
    inside = roles[site.role]
    if (
        roles is T5
        and site.role == "feedforward"
        and not any(s.role == "cross" for s in target.sites.within((site.layer,)))
    ):
        inside = "layer.1"
    return f"{_prefix(target)}{target.sites.layers[site.layer]}.{inside}"


def _settings(method: Method, target: Target) -> dict[str, Any]:
    """Return the switches that make the library's adapter compute what a method does."""
    closed = any(site.closing is not None for site in target.sites.sites)
    cross = any(site.role == "cross" for site in target.sites.sites)
    only: dict[str, Any] = {"mh_adapter": False, "output_adapter": True, "cross_adapter": False}
    both: dict[str, Any] = {"mh_adapter": True, "output_adapter": True, "cross_adapter": cross}
    after: dict[str, Any] = {"original_ln_before": False, "is_parallel": False, "scaling": 1.0}
    beside: dict[str, Any] = {"original_ln_before": False, "is_parallel": True}
    kind = type(method)
    if kind is Houlsby:
        return both | after
    if kind is HoulsbyAttention:
        return both | after | {"output_adapter": False}
    if kind is HoulsbyFeedforward or (kind is Pfeiffer and not closed and not method.invertible):  # type: ignore[attr-defined]
        return only | after
    if (kind is Pfeiffer and closed) or (kind is LayerAdapter and not closed):
        couples = {"inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
        return only | after | {"original_ln_before": True} | (couples if getattr(method, "invertible", False) else {})
    if (kind in (ParallelAdapter, ScaledParallel) and closed) or (kind is StreamParallel and not closed):
        return only | beside | {"scaling": float(getattr(method, "scale", 1.0))}
    if kind is HoulsbyParallel and closed:
        return both | beside | {"scaling": 1.0}
    where = "a base whose layers end with a norm" if closed else "a base whose layers do not end with a norm"
    raise InteropError(
        f"adapters has nothing that computes {method.name} in {where}.",
        hint="LoRA and IA³: --to peft. Any method: --to transformers",
    )


def _check_norms(method: Method, v: Mapping[str, Tensor], target: Target) -> None:
    """Raise InteropError for a task whose own norms are not the base's: the library has no place for them."""
    for name, tensor in v.items():
        if name.startswith("norm.") and not tensor.equal(target.backbone.get_parameter(name.removeprefix("norm."))):
            raise InteropError(
                f"{method.name} has trained the base's norms, as the paper does, and adapters has no place for them: "
                "without them the task would predict something else.",
                hint=f"Train it with {method.name}(norms=false), or write a whole model: --to transformers",
            )


def _reduction(width: int, size: int) -> float:
    """Return a factor from which the library computes this size: int(width // factor)."""
    exact = width / size
    return exact if int(width // exact) == size else width / (size + 0.5)


def _head(record: Record, weights: Mapping[str, Tensor], name: str, target: Target) -> dict[str, bytes]:
    """Return the files of a task's head: one of the library's own, or that of the model that is given."""
    own = {key: tensor for key, tensor in weights.items() if key.startswith("head.")}
    if not own:
        return {}
    if record.kind == "attached":
        if target.model is None:
            raise InteropError(
                f"the head of '{record.name}' is that of a model of your own, whose class is not known.",
                hint="In Python: adaptree.hub.interop.write.write_adapters(task, model, folder), or with head=False.",
            )
        named = {key.removeprefix("head."): tensor for key, tensor in own.items()}
        labels = getattr(target.model.config, "label2id", None)
        about = _about(target, None, config=None, label2id=labels, num_labels=target.model.config.num_labels)
        return {adapterhub.HEAD: _json(about), adapterhub.SAFE_HEAD: as_bytes(named)}
    if target.model is not None:
        raise InteropError(
            f"the head of '{record.name}' is not that of a {type(target.model).__name__}.", hint="Give its base."
        )
    config, numbered = _flexible(record, heads.unscaled(record, own), target)
    tensors = {f"heads.{name}.{key}": tensor for key, tensor in numbered.items()}
    return {adapterhub.HEAD: _json(_about(target, name, config=config)), adapterhub.SAFE_HEAD: as_bytes(tensors)}


def _flexible(record: Record, own: Mapping[str, Tensor], target: Target) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a head of the library's own classes: its settings, and its tensors by their place in a sequence."""
    sorts = {"classify": "classification", "regress": "classification", "multilabel": "multilabel_classification",
             "tag": "tagging", "answer": "question_answering"}  # fmt: skip
    pooled = "last" if target.sites.architecture in heads.DECODERS else "first"
    sort, hidden = sorts.get(record.kind), record.extra.get("hidden", "")
    reads_text = record.kind in ("classify", "regress", "multilabel")
    other = reads_text and record.pooling != pooled
    if sort is None or target.sites.architecture == "t5" or (other and hidden):
        raise InteropError(
            f"adapters has no head like that of '{record.name}' ({record.kind}, pooling {record.pooling or 'none'}) on "
            f"{target.sites.architecture}.",
            hint=heads.WITHOUT,
        )
    count = len(own["head.bias"])
    if other:
        sort, reads_text = "tagging", False
    config: dict[str, Any] = {
        "head_type": sort,
        "num_labels": count,
        "layers": 2 if hidden else 1,
        "activation_function": hidden or "tanh",
        "label2id": {str(label): i for i, label in enumerate(record.labels)} or None,
        "dropout_prob": None,
    }
    if reads_text:
        config |= {"use_pooler": False, "bias": True}
    last = "4" if hidden else "1"  # dropout, linear, activation, dropout, linear
    numbered = {f"{last}.weight": own["head.weight"], f"{last}.bias": own["head.bias"]}
    if hidden:
        numbered |= {f"1.{part}": own[f"{DENSE}.{part}"] for part in ("weight", "bias")}
    return config, numbered


def _fusion(task: Task, target: Target, head: bool) -> dict[str, bytes]:
    """Return the files of a fused task: its parts, the fusion, its head, and the setup that joins them."""
    import torch

    record = task.record
    references = compose.parse(record.extra[FUSES]).names
    names = [reference.partition("@")[0].replace("/", "-") for reference in references]
    if len(set(names)) < len(names):
        names = [f"{name}-{i}" for i, name in enumerate(names)]
    whole = ",".join(names)
    parts = [task.parts[reference] for reference in references]
    method = parse(record.method)
    assert isinstance(method, Fusion)
    method = method.over([(parse(part.record.method), part.weights) for part in parts])
    closed = any(site.closing is not None for site in target.sites.sites)
    branches = isinstance(method, BranchFusion)
    layers = method._sites(target.sites)
    identity = all(
        (task.weights[f"{site.name}.value"] - torch.eye(site.width)).abs().max() <= IDENTITY for site in layers
    )
    if not branches and closed and not identity:
        raise InteropError(
            f"adapters computes another fusion than the paper's, which '{record.name}' is: its V acts on the adapters' "
            "branches, and the paper's on the residual too.",
            hint="Write a whole model: --to transformers",
        )
    tensors: dict[str, Tensor] = {}
    for site in layers:
        front = f"{_module(site, target)}.adapter_fusion_layer.{whole}"
        for word in ("query", "key", "value"):
            tensors[f"{front}.{word}.weight"] = task.weights[f"{site.name}.{word}"].T
        nothing = torch.zeros(site.width)
        tensors[f"{front}.query.bias"] = task.weights.get(f"{site.name}.query_bias", nothing[None])[0]
        tensors[f"{front}.key.bias"] = nothing
    config = {
        "key": True, "query": True, "value": True, "query_before_ln": False, "regularization": True,
        "residual_before": not branches and not closed, "temperature": False, "value_before_softmax": True,
        "value_initialized": True, "dropout_prob": None,
    }  # fmt: skip
    found = {
        f"{whole}/{adapterhub_fusion.FUSION}": _json(_about(target, whole, config=config, adapter_names=names)),
        f"{whole}/{adapterhub_fusion.SAFE_FUSION}": as_bytes(tensors),
    }
    for name, part in zip(names, parts, strict=True):
        adapter = _adapter(parse(part.record.method), part.weights, name, target)
        found |= {f"{name}/{file}": data for file, data in adapter.items()}
    own = record.name.replace("/", "-")
    own = own if own not in names else f"{own}-head"
    mine = _head(record, task.weights, own, target) if head else {}
    found |= {f"{own}/{file}": data for file, data in mine.items()}
    setup = {
        "adapter_setup": {"type": "Fuse", "children": [{"type": "single", "children": [name]} for name in names]},
        "head_setup": own if mine else None,
        "version": VERSION,
    }
    card = _card(task, target, bool(mine), "load_adapter_setup")
    return found | {adapterhub_fusion.SETUP: _json(setup), "README.md": card.encode()}


def reading(record: Record, architecture: str) -> str:
    """Return how the logits of the library's head become the task's, as Python; '' where they are the same.

    Its classifier reads the first token, or a decoder's last one; for another pooling its tagger stands in.
    """
    pooled = "last" if architecture in heads.DECODERS else "first"
    if record.kind not in ("classify", "regress", "multilabel") or record.pooling == pooled:
        return ""
    return heads.READINGS[record.pooling]


def _card(task: Task, target: Target, head: bool, load: str) -> str:
    record = task.record
    own = record.kind == "attached" and target.model is not None
    of = type(target.model).__name__ if own else "AutoAdapterModel" if head else "AutoModel"
    lines = ["---", "library_name: adapters", f"base_model: {target.name}", "---", f"# {record.name}", ""]
    lines += [f"{record.method}, trained with adaptree on {record.base.get('name')}.", "", "```py"]
    lines += ["import adapters", f"from {'adapters' if of == 'AutoAdapterModel' else 'transformers'} import {of}", ""]
    lines += [f"model = {of}.from_pretrained({target.name!r})"]
    lines += [] if of == "AutoAdapterModel" else ["adapters.init(model)"]
    lines += [f"model.{load}(FOLDER, set_active=True, use_safetensors=True)"]
    if head:
        lines += ["logits = model(**inputs).logits"]
    if head and (how := reading(record, target.sites.architecture)):
        lines += ['mask = inputs["attention_mask"]', f"logits = {how}  # one row for each text"]
    lines += ["```", ""]
    if record.labels:
        lines += [f"The outputs stand for: {', '.join(map(str, record.labels))}.", ""]
    return "\n".join(lines)
