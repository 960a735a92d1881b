"""What `peft` saves: adapter_config.json and adapter_model.safetensors, with LoRA or IA³ and the modules beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import InteropError
from adaptree.hub.interop import heads, maps
from adaptree.hub.interop.files import read_config, read_tensors
from adaptree.hub.interop.foreign import Foreign, Place
from adaptree.hub.interop.maps import LowRank, linear_of

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.methods import Method
    from adaptree.models.sites import Linear

CONFIG, SAFE, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
FRONT = "base_model.model."
ENDINGS = {"SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification", "QUESTION_ANS": "QuestionAnswering"}
"""Of the Hugging Face classes that a task type is for."""
REFUSED = {
    "use_dora": "DoRA divides each map by the norm of its changed weight",
    "lora_bias": "its LoRA has biases",
    "use_qalora": "QALoRA pools the inputs",
    "use_bdlora": "its LoRA is block-diagonal",
    "alora_invocation_tokens": "aLoRA acts only behind certain tokens",
    "arrow_config": "Arrow chooses among several LoRAs",
    "kasa_config": "KaSA changes the base's weights",
    "monteclora_config": "MonteCLoRA samples its weights",
    "layer_replication": "it repeats layers of the base",
    "trainable_token_indices": "it has embeddings of its own for some tokens",
    "target_parameters": "it adapts parameters that are no linear maps",
    "megatron_config": "it was trained with Megatron",
}
"""Settings of a LoRA that change the maths, with the reason why it is not read."""
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways of initialising LoRA that leave the base as it is; PiSSA, OLoRA, CorDA and LoftQ change its weights."""


def read(folder: Path, place: Place) -> Foreign:
    """Return the LoRA or IA³ in a folder, with its head."""
    config = read_config(folder, CONFIG)
    kind = str(config.get("peft_type")).upper()
    if kind not in ("LORA", "IA3"):
        raise InteropError(
            f"'{folder.name}' holds {kind} of peft, which has no counterpart here.", hint="LoRA and IA³ are read."
        )
    tensors = {_plain(name): tensor for name, tensor in read_tensors(folder, SAFE, PICKLED).items()}
    method, v, rest = (_lora if kind == "LORA" else _ia3)(folder, config, tensors, place)
    head = _head(folder, config, _without_base(folder, rest, place), place)
    version = config.get("peft_version")
    base = str(config.get("base_model_name_or_path") or "")
    return Foreign(f"peft {version}" if version else "peft", folder.name, base, method, v, head)


def _plain(name: str) -> str:
    """Return a tensor's name in the model that was adapted."""
    name = name.removeprefix(FRONT)
    for word in (".modules_to_save.default.", ".modules_to_save.", ".base_layer."):
        name = name.replace(word, ".")
    return name


def _lora(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], place: Place
) -> tuple[Method, dict[str, Tensor], dict[str, Tensor]]:
    for setting, why in REFUSED.items():
        if config.get(setting):
            raise InteropError(f"'{folder.name}' is not read: {why} ({setting}).", hint="Plain LoRA is read.")
    if (initial := config.get("init_lora_weights", True)) not in INITIAL:
        raise InteropError(
            f"'{folder.name}' is not read: its initialisation, {initial!r:.40}, changed the base's weights.",
            hint="Convert it to plain LoRA: save_pretrained(…, path_initial_model_for_weight_conversion=…).",
        )
    found: dict[str, dict[str, Tensor]] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", name):
            found.setdefault(match[1], {})[match[2]] = tensor
        elif ".lora_" in name:
            raise InteropError(f"'{folder.name}' is not read: '{name}' is no part of LoRA beside a linear map.")
        else:
            rest[name] = tensor
    if not found:
        raise InteropError(f"there is no LoRA in '{folder.name}'.", hint="Save it again.")
    changes: dict[Linear, LowRank] = {}
    for module, pair in found.items():
        if (linear := linear_of(module, place.sites)) is None:
            raise maps.unplaced([module], place.sites)
        if (
            set(pair) != {"A", "B"}
            or any(t.dim() != 2 for t in pair.values())
            or pair["A"].shape[0] != pair["B"].shape[1]
        ):
            raise InteropError(f"'{folder.name}' is broken: the LoRA of '{module}' has no A and B of one rank.")
        changes[linear] = LowRank(pair["A"], pair["B"], _scale(config, module, len(pair["A"])))
    method, v = maps.lora(changes, place.sites)
    return method, v, rest


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return what a map's change is multiplied by: α / r, or α / √r (rank-stabilised LoRA)."""
    alpha, patterns = config.get("lora_alpha", 8), config.get("alpha_pattern") or {}
    for pattern, value in patterns.items():
        if _matches(pattern, module):
            alpha = value
            break
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise InteropError(f"adapter_config.json is broken: lora_alpha is {alpha!r:.40}.")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _matches(pattern: str, module: str) -> bool:
    """Return whether a name of peft's alpha_pattern ends a module's, or with ^ in front is all of it.

    peft takes regular expressions there. One from a stranger's file could run for ever, so only names are read.
    """
    name = pattern.removeprefix("^")
    if re.search(r"[^\w.-]", name):
        raise InteropError(
            f"adapter_config.json has a regular expression in alpha_pattern, {pattern!r:.60}: it is not read."
        )
    return module == name or (name == pattern and module.endswith(f".{name}"))


def _ia3(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], place: Place
) -> tuple[Method, dict[str, Tensor], dict[str, Tensor]]:
    outputs: dict[Linear, Tensor] = {}
    inputs: dict[Linear, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not (match := re.fullmatch(r"(.+)\.ia3_l(?:\.default)?", name)):
            rest[name] = tensor
            continue
        if (linear := linear_of(match[1], place.sites)) is None:
            raise maps.unplaced([match[1]], place.sites)
        before = tensor.dim() == 2 and tensor.shape[0] == 1  # (1, inputs) of a feed-forward map, else (outputs, 1)
        (inputs if before else outputs)[linear] = tensor.flatten()
    if not outputs and not inputs:
        raise InteropError(f"there is no IA³ in '{folder.name}'.", hint="Save it again.")
    method, v = maps.ia3(outputs, inputs, place.sites)
    return method, v, rest


def _without_base(folder: Path, rest: Mapping[str, Tensor], place: Place) -> dict[str, Tensor]:
    """Return what belongs to the head; raise InteropError if some of it replaces weights of the base.

    Of the base, only BERT's pooler is let through: its classifier reads nothing else.
    """
    import torch

    own = {name: p.detach() for name, p in place.backbone.named_parameters()}
    head: dict[str, Tensor] = {}
    for name, tensor in rest.items():
        plain = name
        while plain not in own and "." in plain:
            plain = plain.partition(".")[2]
        if plain.count(".") < 2 and not plain.startswith("pooler"):  # 'weight' alone is anybody's
            plain = name if name in own else ""
        if plain not in own or plain.startswith("pooler"):
            head[name] = tensor
        elif own[plain].shape != tensor.shape or not torch.equal(own[plain].float(), tensor):
            why = "trains biases of the base" if plain.endswith("bias") else "replaces weights of the base"
            raise InteropError(
                f"'{folder.name}' is not read: it {why} ('{plain}'), which has no place beside it in one task here.",
                hint="Train it with bias='none', and only a head in modules_to_save.",
            )
    return head


def _head(folder: Path, config: Mapping[str, Any], named: dict[str, Tensor], place: Place) -> heads.Head | None:
    if not named:
        return None
    labels = read_config(folder, "config.json").get("label2id") if (folder / "config.json").is_file() else None
    of = ENDINGS.get(str(config.get("task_type")), "")
    return heads.of_model(of, named, labels, place.sites, place.backbone, place.pooler)
