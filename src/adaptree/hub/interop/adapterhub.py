"""What `adapters` 1.x saves of an adapter and its head: for each a JSON file and a file of tensors.

Its adapters are put together from some twenty switches. Those of its named configurations are read, and every other
combination that is the same maths as one of our methods; anything else is refused with the switch that is in the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.core.bottleneck import ACTIVATIONS
from adaptree.errors import InteropError, WrongBase
from adaptree.hub.interop import heads, maps
from adaptree.hub.interop.files import read_config, read_tensors
from adaptree.hub.interop.foreign import Foreign, Place
from adaptree.hub.interop.maps import LowRank, linear_of, spell_layers
from adaptree.methods.adapterhub import Ia3Intermediate, LayerAdapter, StreamParallel
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.houlsby import Houlsby
from adaptree.methods.ia3 import Ia3
from adaptree.methods.parallel import HoulsbyParallel, ParallelAdapter, ScaledParallel
from adaptree.methods.pfeiffer import Pfeiffer
from adaptree.methods.variants import HoulsbyAttention, HoulsbyFeedforward

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.methods import Method
    from adaptree.models.sites import Linear, Site

CONFIG, SAFE, PICKLED = "adapter_config.json", "adapter.safetensors", "pytorch_adapter.bin"
HEAD, SAFE_HEAD, PICKLED_HEAD = "head_config.json", "model_head.safetensors", "pytorch_model_head.bin"
ROLES = {
    "attention.output": "attention", "output": "feedforward", "attention_adapters": "attention",
    "output_adapters": "feedforward", "cross_attention_adapters": "cross", "layer.0": "attention", "layer.1": "cross",
    "layer.2": "feedforward",
}  # fmt: skip
"""The sublayer of an adapter, by the module within its layer that holds it. T5's encoder has no layer.2."""
OLD = re.compile(r"(attention_text_task|attention_text_lang|layer_text_task|layer_text_lang)_adapters")
"""What adapter-transformers 1 called its adapters."""
OTHERS = {
    "prefix_tuning": "prefix tuning puts keys and values into attention, and no method here does",
    "prompt_tuning": "prompt tuning puts vectors before the text, and no method here does",
    "reft": "ReFT edits hidden states in a subspace, and no method here does",
    "mtl_lora": "MTL-LoRA mixes several LoRAs",
    "union": "it is a union of several adapters (MAM, UniPELT)",
}
"""Architectures that are not read, with the reason."""
SILU = {"swish": "swish", "silu": "swish"}


def read(folder: Path, place: Place) -> Foreign:
    """Return the adapter in a folder, with its head."""
    config = read_config(folder, CONFIG)
    check_base(folder, config, place)
    settings, name = _settings(folder, config), str(config.get("name"))
    if (other := settings.get("architecture")) in OTHERS:
        raise InteropError(f"'{folder.name}' is not read: {OTHERS[other]}.")
    method, v = _adapter(folder, settings, _own(folder, name), place)
    return Foreign(library_of(config), name, str(config.get("model_name") or ""), method, v, read_head(folder, place))


def library_of(config: Mapping[str, Any]) -> str:
    """Return the library that wrote a file, with its version."""
    version = str(config.get("version") or "")
    return version.replace("adapters.", "adapters ") if version.startswith("adapters.") else "adapters"


def check_base(folder: Path, config: Mapping[str, Any], place: Place) -> None:
    """Raise WrongBase if a folder says that it is for another architecture or width."""
    sites = place.sites
    for what, here in (("model_type", sites.architecture), ("hidden_size", sites.sites[0].width)):
        there = config.get(what)
        if there is not None and there != here:
            raise WrongBase(
                f"'{folder.name}' is for a base of {what} {there!r:.40}, and this one has {here!r}.",
                hint=f"Give the base that it was trained on, {config.get('model_name') or '?'}: --base B",
            )


def _settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adapter's settings, with what older versions wrote in other words."""
    settings = config.get("config")
    if not isinstance(settings, dict):
        raise InteropError(f"{folder / CONFIG} is broken: it has no 'config'.", hint="Save or fetch it again.")
    settings = dict(settings)
    if nested := settings.pop("invertible_adapter", None):
        settings |= {
            "inv_adapter": nested.get("block_type"),
            "inv_adapter_reduction_factor": nested.get("reduction_factor"),
        }
    version = str(config.get("version") or "")
    if not version:  # gelu was the approximate one then
        settings["non_linearity"] = {"gelu": "gelu_new", "gelu_orig": "gelu"}.get(
            settings.get("non_linearity", ""), settings.get("non_linearity")
        )
    numbers = re.match(r"adapters\.(\d+)\.(\d+)", version)
    if settings.get("architecture") == "lora" and numbers and (int(numbers[1]), int(numbers[2])) < (1, 1):
        settings["alpha"] = settings.get("r")  # it was ignored until 1.1
    return settings


def _own(folder: Path, name: str) -> dict[tuple[str, str], Tensor]:
    """Return an adapter's tensors by the module that holds them, and by what is behind the adapter's name."""
    own: dict[tuple[str, str], Tensor] = {}
    pattern = re.compile(rf"(?:(.+)\.)?((?:invertible_)?adapters|loras|\w+)\.{re.escape(name)}\.(.+)")
    for key, tensor in read_tensors(folder, SAFE, PICKLED).items():
        renamed = OLD.sub("adapters", key).replace("invertible_lang_adapters", "invertible_adapters")
        if not (match := pattern.fullmatch(renamed)):
            raise InteropError(f"{folder}: the tensor '{key}' is not of the adapter '{name}'.", hint="Save it again.")
        sort, part = match[2], match[3]
        module = "invertible" if sort == "invertible_adapters" else (match[1] or "")
        if sort not in ("adapters", "loras", "invertible_adapters"):
            raise InteropError(f"'{folder.name}' is not read: it has {sort}, which no method here has.")
        own[module, part] = tensor
    return own


def _adapter(
    folder: Path, settings: Mapping[str, Any], own: Mapping[tuple[str, str], Tensor], place: Place
) -> tuple[Method, dict[str, Tensor]]:
    kind = settings.get("architecture")
    if not own:
        raise InteropError(f"there are no weights in '{folder.name}'.", hint="Save it again.")
    if kind == "lora":
        return _low_rank(folder, settings, own, place)
    if kind is not None:
        raise InteropError(f"'{folder.name}' is not read: no method here is {kind!r:.40}.")
    return _bottleneck(folder, settings, own, place)


def _low_rank(
    folder: Path, settings: Mapping[str, Any], own: Mapping[tuple[str, str], Tensor], place: Place
) -> tuple[Method, dict[str, Tensor]]:
    why = {
        "use_gating": "gates decide how much of it counts", "use_dora": "DoRA divides each map by its norm",
        "vera_d": "VeRA shares random matrices", "vera_b": "VeRA shares random matrices",
    }  # fmt: skip
    for setting, reason in why.items():
        if settings.get(setting):
            raise InteropError(
                f"'{folder.name}' is not read: {reason} ({setting}).", hint="Plain LoRA and IA³ are read."
            )
    scales = settings.get("composition_mode") == "scale"
    found: dict[Linear, dict[str, Tensor]] = {}
    for (module, part), tensor in own.items():
        if (linear := linear_of(module, place.sites)) is None:
            raise maps.unplaced([module], place.sites)
        found.setdefault(linear, {})[part] = tensor
    rank, alpha = settings.get("r"), settings.get("alpha")
    if not isinstance(rank, int | float) or not isinstance(alpha, int | float) or rank <= 0:
        raise InteropError(f"{folder / CONFIG} is broken: r is {rank!r:.20} and alpha {alpha!r:.20}.")
    if scales:
        outputs = {linear: _fused_scale(linear, parts, settings) * alpha for linear, parts in found.items()}
        inner = {linear.role for linear in outputs} & {"up", "gate", "down"}
        if inner - {"up"} or (inner and place.sites.architecture == "llama"):
            raise InteropError(
                f"'{folder.name}' is not read: its IA³ scales the output of {', '.join(sorted(inner))}, and that of "
                "Liu et al. what goes into the last map."
            )
        return maps.ia3(outputs, {}, place.sites, Ia3Intermediate if inner else Ia3)
    changes = {}
    for linear, parts in found.items():
        if set(parts) != {"lora_A", "lora_B"}:
            raise InteropError(f"'{folder.name}' is broken: '{linear.path}' has {', '.join(sorted(parts))}.")
        A, B = parts["lora_A"], parts["lora_B"]
        if linear.role == "qkv":
            B = _unfused(linear, B, settings, int(rank))
        changes[linear] = LowRank(A, B, float(alpha) / float(rank))
    return maps.lora(changes, place.sites)


def _enabled(settings: Mapping[str, Any]) -> list[int]:
    """Return which thirds of a fused map are adapted."""
    words = settings.get("attn_matrices") or []
    return [i for i, word in enumerate("qkv") if word in words]


def _unfused(linear: Linear, B: Tensor, settings: Mapping[str, Any], rank: int) -> Tensor:
    """Return B (outputs, thirds · rank) of a fused map, of whose thirds each has a LoRA of its own."""
    import torch

    third, enabled = linear.outputs // 3, _enabled(settings)
    whole = torch.zeros(linear.outputs, rank * len(enabled))
    if tuple(B.shape) != (third * len(enabled), rank):
        raise InteropError(
            f"the LoRA of '{linear.path}' is {tuple(B.shape)}, which is not of {len(enabled)} thirds of it."
        )
    for i, at in enumerate(enabled):
        whole[at * third : (at + 1) * third, i * rank : (i + 1) * rank] = B[i * third : (i + 1) * third]
    return whole


def _fused_scale(linear: Linear, parts: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    """Return the scales of a map's outputs; of a fused map those of the thirds that are not adapted are 1."""
    import torch

    if "lora_B" not in parts:
        raise InteropError(f"the IA³ of '{linear.path}' has no scales.")
    scale = parts["lora_B"].flatten()
    if linear.role != "qkv":
        return scale
    third = linear.outputs // 3
    whole, enabled = torch.ones(linear.outputs), _enabled(settings)
    if len(scale) != third * len(enabled):
        raise InteropError(f"the IA³ of '{linear.path}' has {len(scale)} scales, not {third * len(enabled)}.")
    for i, at in enumerate(enabled):
        whole[at * third : (at + 1) * third] = scale[i * third : (i + 1) * third]
    return whole


def _bottleneck(
    folder: Path, settings: Mapping[str, Any], own: Mapping[tuple[str, str], Tensor], place: Place
) -> tuple[Method, dict[str, Tensor]]:
    import torch

    sites = place.sites
    found: dict[Site, dict[str, Tensor]] = {}
    coupling: dict[str, Tensor] = {}
    for (module, part), tensor in own.items():
        if module == "invertible":
            coupling[part] = tensor
        elif (site := site_of(module, place)) is None:
            raise maps.unplaced([module], sites)
        else:
            found.setdefault(site, {})[part] = tensor
    if not found:
        raise InteropError(f"there are no adapters in '{folder.name}'.", hint="Save it again.")
    roles = {site.role for site in found}
    form, fields = _form(folder, settings, roles, place)
    adapters = {site: _plain(folder, site, parts, settings, form) for site, parts in found.items()}
    size = max(p["down"].shape[1] for p in adapters.values())
    layers = spell_layers({site.layer for site in found}, sites.depth)
    method = form(size=size, activation=_activation(folder, settings), layers=layers, **fields)
    v: dict[str, Tensor] = {}
    for site in method._sites(sites):
        d = site.width
        shapes = {"down": (d, size), "down_bias": (1, size), "up": (size, d), "up_bias": (1, d)}
        for key, shape in shapes.items():
            whole = torch.zeros(shape)
            if site in adapters:
                given = adapters[site][key]  # of a smaller size: what is missing is zero, and computes nothing
                whole[: given.shape[0], : given.shape[1]] = given
            v[f"{site.name}.{key}"] = whole
    if coupling:
        v |= _coupling(folder, coupling, place)
    return method, v


def site_of(module: str, place: Place) -> Site | None:
    """Return the place of an adapter from the name of the module that holds it."""
    for layer, path in enumerate(place.sites.layers):
        _, found, inside = f".{module}".partition(f".{path}.")
        if not found:
            continue
        role = ROLES.get(inside)
        there = {site.role: site for site in place.sites.within((layer,))}
        if inside == "layer.1" and "cross" not in there:
            role = "feedforward"
        return there.get(role or "")
    return None


def _form(
    folder: Path, settings: Mapping[str, Any], roles: set[str], place: Place
) -> tuple[type[Bottleneck], dict[str, Any]]:
    """Return the method that an adapter is, and its fields; raise InteropError, naming the switches, if none is."""
    why = {
        "phm_layer": "Compacter's matrices are sums of Kronecker products, and no method here has such",
        "use_gating": "a gate decides how much of it counts", "ln_before": "it has a layer norm of its own",
        "ln_after": "it has a layer norm of its own",
    }  # fmt: skip
    for setting, reason in why.items():
        if settings.get(setting):
            raise InteropError(f"'{folder.name}' is not read: {reason} ({setting}).")
    closed = any(site.closing is not None for site in place.sites.sites)
    inverts = bool(settings.get("inv_adapter"))
    both = {"attention", "feedforward"}
    form: type[Bottleneck] | None = None
    fields: dict[str, Any] = {}
    if not settings.get("original_ln_after", True):
        pass
    elif settings.get("is_parallel"):
        scale = settings.get("scaling", 1.0)
        if roles == {"feedforward"}:
            form = ScaledParallel if closed else StreamParallel
            fields = {"scale": float(scale) if _is_number(scale) and scale > 0 else 1.0}
            if closed and fields["scale"] == 1.0:
                form, fields = ParallelAdapter, {}
        elif roles == both and closed:
            form, fields = HoulsbyParallel, {"norms": False}
    elif not settings.get("original_ln_before"):
        by_roles = {frozenset({"attention"}): HoulsbyAttention, frozenset({"feedforward"}): HoulsbyFeedforward}
        form, fields = by_roles.get(frozenset(roles - {"cross"}), Houlsby), {"norms": False}
    elif roles == {"feedforward"} and settings.get("residual_before_ln", True) is True:
        form = Pfeiffer if closed else LayerAdapter
    if inverts:
        if form is not Pfeiffer:
            raise InteropError(
                f"'{folder.name}' is not read: invertible adapters go with seq_bn here, where layers end with a norm."
            )
        fields = {"invertible": True}
    if form is None:
        switches = ("original_ln_before", "original_ln_after", "residual_before_ln", "is_parallel")
        shown = ", ".join(f"{name}={settings.get(name)!r}" for name in switches)
        raise InteropError(
            f"'{folder.name}' is not read: no method here is an adapter after {' and '.join(sorted(roles))} with "
            f"{shown}.",
            hint="double_seq_bn, seq_bn, seq_bn_inv, par_bn, lora and ia3 are read.",
        )
    return form, fields


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _activation(folder: Path, settings: Mapping[str, Any]) -> str:
    name = str(settings.get("non_linearity")).lower()
    name = SILU.get(name, name)
    if name not in ACTIVATIONS:
        raise InteropError(
            f"'{folder.name}' is not read: its activation is '{name}', and ours are {', '.join(ACTIVATIONS)}."
        )
    return name


def _plain(
    folder: Path, site: Site, parts: Mapping[str, Tensor], settings: Mapping[str, Any], form: type[Bottleneck]
) -> dict[str, Tensor]:
    """Return one adapter's weights under our names, with the factor of its output in `up`."""
    names = {"down": "adapter_down.0.weight", "down_bias": "adapter_down.0.bias",
             "up": "adapter_up.weight", "up_bias": "adapter_up.bias"}  # fmt: skip
    for name in parts:
        if name not in (*names.values(), "scaling"):
            raise InteropError(f"'{folder.name}' is not read: its adapters have '{name}', which ours have not.")
    if missing := [name for name in names.values() if name not in parts]:
        raise InteropError(f"'{folder.name}' is broken: layer {site.layer} has no {missing[0]}.", hint="Save it again.")
    m, d = len(parts[names["down"]]), site.width
    shapes = {"down": (m, d), "down_bias": (m,), "up": (d, m), "up_bias": (d,)}
    for key, shape in shapes.items():
        if tuple(parts[names[key]].shape) != shape:
            raise WrongBase(
                f"'{folder.name}': {names[key]} of layer {site.layer} is {tuple(parts[names[key]].shape)}, and {shape} "
                "fits this base.",
                hint="Give the base that it was trained on: --base B",
            )  # fmt: skip
    scale: Any = parts.get("scaling", settings.get("scaling", 1.0))
    if "scaling" not in parts and not _is_number(scale):
        raise InteropError(f"'{folder.name}' is broken: its scaling is {scale!r:.40}, and no weights have it.")
    if issubclass(form, ScaledParallel) and "scaling" not in parts and scale > 0:
        scale = 1.0  # the method multiplies by it
    return {
        "down": parts[names["down"]].T,
        "down_bias": parts[names["down_bias"]][None],
        "up": parts[names["up"]].T * scale,
        "up_bias": parts[names["up_bias"]][None] * scale,
    }


def _coupling(folder: Path, parts: Mapping[str, Tensor], place: Place) -> dict[str, Tensor]:
    """Return the weights of an invertible adapter (NICE) under our names."""
    import torch

    from adaptree.core import invertible

    d = place.sites.sites[0].width
    half, m = invertible.sizes(d)
    v: dict[str, Tensor] = {}
    for ours, theirs in (("f", "F"), ("g", "G")):
        names = {"down": f"{theirs}.0.weight", "down_bias": f"{theirs}.0.bias",
                 "up": f"{theirs}.2.weight", "up_bias": f"{theirs}.2.bias"}  # fmt: skip
        found = {key: parts.get(name) for key, name in names.items()}
        width = 0 if found["down"] is None else len(found["down"])
        wanted = {"down": (width, half), "down_bias": (width,), "up": (half, width), "up_bias": (half,)}
        if any(t is None or tuple(t.shape) != wanted[key] for key, t in found.items()) or not 0 < width <= m:
            raise InteropError(
                f"'{folder.name}' is not read: its invertible adapter is no NICE coupling, or reduces less than 2."
            )
        for key, shape in {"down": (half, m), "down_bias": (1, m), "up": (m, half), "up_bias": (1, half)}.items():
            given = found[key]
            assert given is not None
            given = given[None] if given.dim() == 1 else given.T
            whole = torch.zeros(shape)
            whole[: given.shape[0], : given.shape[1]] = given
            v[f"invertible.{ours}.{key}"] = whole
    return v


def read_head(folder: Path, place: Place) -> heads.Head | None:
    """Return the head in a folder; None if there is none."""
    if not (folder / HEAD).is_file():
        return None
    config = read_config(folder, HEAD)
    tensors = read_tensors(folder, SAFE_HEAD, PICKLED_HEAD)
    settings = config.get("config")
    if isinstance(settings, dict):
        return heads.flexible(settings, tensors, place.sites, place.backbone, place.pooler)
    of = str(config.get("model_class")).rpartition("For")[2]
    return heads.of_model(of, tensors, config.get("label2id"), place.sites, place.backbone, place.pooler)
