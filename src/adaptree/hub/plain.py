"""What a composition of tasks is in a model that does not know adaptree: other weights, and adapters in their places.

A method that is linear in the base's weights is merged into them: whole layers, δs, norms, LoRA, IA3. Bottlenecks, and
a fusion of some, are written down as data that `modeling.py` reads. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from adaptree.compose import weights_of
from adaptree.compose.blocks import Dropped, MeanOfWeights
from adaptree.errors import UsageError
from adaptree.methods import Method, Params
from adaptree.methods.bapna import Bapna
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.dense import Full
from adaptree.methods.fusion import Fusion
from adaptree.methods.ia3 import Ia3
from adaptree.methods.layers import parse_layers
from adaptree.methods.lora import Lora
from adaptree.methods.method import part
from adaptree.methods.norms import Head, Norms
from adaptree.methods.parallel import ENTRANCES, Beside, HoulsbyMultiplicative
from adaptree.methods.pfeiffer import Pfeiffer, coupling
from adaptree.methods.sparse import Sparse
from adaptree.models.sites import transposed

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.compose import Composition
    from adaptree.models.hooks import HookedModel
    from adaptree.models.sites import Site

Kept = Callable[[str], bool]
"""Whether the module at a path is still acted on: drop(…) takes some layers away."""


@dataclass
class Plain:
    """A base with a composition in it: all of its weights, and the adapters that are put into it."""

    weights: dict[str, Tensor]
    """The backbone's parameters."""
    places: list[dict[str, Any]] = field(default_factory=list)
    """The adapters, as `modeling.py` describes them."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The adapters' weights, by their names in the model of `modeling.py`."""
    inverts: int | None = None
    """The place whose coupling of the embeddings is inverted before words are predicted."""


def plain(hooked: HookedModel, composition: Composition) -> Plain:
    """Return what a composition does to a base; raise UsageError for what transformers alone cannot run."""
    return _Writer(hooked, composition).found


class _Writer:
    """Writes down the methods of a composition, from the lowest to the topmost."""

    def __init__(self, hooked: HookedModel, composition: Composition) -> None:
        self.sites, self.backbone = hooked.sites, hooked.backbone
        self.replaced = {**hooked.frozen, **weights_of(hooked.sites, hooked.frozen, composition.parts)}
        self.found = Plain(dict(self.replaced))
        self.input_scales: list[tuple[str, Tensor]] = []
        for method, v in composition.parts:
            self.write(method, v, lambda path: True)
        for path, scale in self.input_scales:  # last: all that reads the map's input reads it scaled
            weight = self.found.weights[f"{path}.weight"]
            self.found.weights[f"{path}.weight"] = weight * (scale[:, None] if self._transposed(path) else scale)

    def write(self, method: Method, v: Params, kept: Kept) -> None:
        """Add what a method does in the modules that are kept."""
        if isinstance(method, Dropped):
            self._write_dropped(method, kept)
        elif isinstance(method, Fusion):
            self._write_fusion(method, v, kept)
        elif isinstance(method, Bottleneck):
            self._write_bottlenecks(method, v, kept)
        elif isinstance(method, Lora):
            self._merge_lora(method, v, kept)
        elif isinstance(method, Ia3):
            self._merge_ia3(v, kept)
        elif isinstance(method, Norms):
            self._own_norms(v, kept)
        elif not isinstance(method, Full | Sparse | MeanOfWeights | Head):  # those only replace weights
            raise UsageError(
                f"{method.name} is neither a change of the base's weights nor a bottleneck, and transformers has no "
                "place for it.",
                hint="An ONNX graph has: --to onnx",
            )

    def _write_dropped(self, block: Dropped, kept: Kept) -> None:
        gone = parse_layers(block.spec, self.sites.depth)
        for method, v in block.parts:
            self.write(method, v, lambda path: kept(path) and self.sites.layer_of(f"{path}.") not in gone)
            if block.keep_norms:
                self._own_norms(v, kept)

    def _own_norms(self, v: Params, kept: Kept) -> None:
        own = {name: tensor for name, tensor in part(v, "norm").items() if kept(name.rpartition(".")[0])}
        self.found.weights |= own

    # Bottlenecks.

    def _write_bottlenecks(self, method: Bottleneck, v: Params, kept: Kept) -> None:
        self._own_norms(v, kept)
        if (maps := coupling(v)) and kept(self.sites.layers[0]):
            self._couple(maps)
        for site in self.sites.sites:
            if p := part(v, site.name):
                spec, tensors = _adapter(method, p)
                self._put(site, method, spec, tensors, part(v, f"norm.{site.closing}"), kept)

    def _couple(self, maps: Params) -> None:
        half, size = maps["f.down"].shape
        self.found.inverts = len(self.found.places)
        tensors = {f"{name}.{key}": tensor for name in "fg" for key, tensor in _linears(part(maps, name)).items()}
        self._add({"form": "embeddings", "at": self.sites.layers[0], "half": half, "size": size}, tensors)

    def _write_fusion(self, method: Fusion, v: Params, kept: Kept) -> None:
        for site in self.sites.sites:
            if not (p := part(v, site.name)):
                continue
            adapters = [_adapter(each, part(own, site.name)) for each, own in method.adapters]
            spec = {"adapters": [spec for spec, _ in adapters], "counts": method.counts, "width": site.width}
            own = {f"adapters.{i}.{key}": t for i, (_, tensors) in enumerate(adapters) for key, t in tensors.items()}
            self._put(site, method.adapters[0][0], spec, {**p, **own}, {}, kept)

    def _put(
        self, site: Site, method: Method, spec: dict[str, Any], tensors: Params, own_norm: Params, kept: Kept
    ) -> None:
        """Add a change where a method has it for a site; `own_norm` are the task's weights of the norm there."""
        if isinstance(method, Pfeiffer) and site.closing is not None:
            if kept(site.closing):
                self._put_at_norm(site.closing, spec, tensors, own_norm)
            return
        place = {"form": "after", "at": self.sites.layers[site.layer] if isinstance(method, Bapna) else site.path}
        if isinstance(method, Beside):
            place |= {"form": "beside", "reads": self._entrance(site)}
        if kept(place["at"]):
            self._add({**place, "changes": [spec]}, {f"changes.0.{name}": tensor for name, tensor in tensors.items()})

    def _put_at_norm(self, path: str, spec: dict[str, Any], tensors: Params, own: Params) -> None:
        """Add a change at the norm that ends a layer, after those that are there; one task's own norm is all theirs."""
        number = next((i for i, place in enumerate(self.found.places) if place["at"] == path), len(self.found.places))
        if number == len(self.found.places):
            self._add({"form": "norm", "at": path, "changes": []}, _under("norm", part(self.replaced, path)))
        changes = self.found.places[number]["changes"]
        self.found.tensors |= _under(f"adapters.{number}.norm", own)
        self.found.tensors |= _under(f"adapters.{number}.changes.{len(changes)}", tensors)
        changes.append(spec)

    def _add(self, place: dict[str, Any], tensors: Params) -> None:
        self.found.tensors |= _under(f"adapters.{len(self.found.places)}", tensors)
        self.found.places.append(place)

    def _entrance(self, site: Site) -> str:
        """Return the path of the linear map that a site's sublayer begins with."""
        linears = self.sites.linears_within((site.layer,))
        return next(each.path for each in linears if each.role in ENTRANCES[site.role] and each.inputs == site.width)

    # What is linear in the base's weights.

    def _merge_lora(self, method: Lora, v: Params, kept: Kept) -> None:
        """W + (α / r) · A B"""
        for linear in self.sites.linears:
            if (p := part(v, linear.name)) and kept(linear.path):
                self._check_order(method, linear.path)
                delta = (p["A"] @ p["B"]) * (method.alpha / method.rank)  # (in, out)
                self.found.weights[f"{linear.path}.weight"] = self.found.weights[f"{linear.path}.weight"] + (
                    delta if self._transposed(linear.path) else delta.T
                )

    def _merge_ia3(self, v: Params, kept: Kept) -> None:
        """Scale the outputs of key and value, and the inputs of down."""
        for linear in self.sites.linears:
            if not kept(linear.path):
                continue
            if linear.role == "qkv" and (key := v.get(f"{linear.layer}.key.scale")) is not None:
                value = v[f"{linear.layer}.value.scale"]
                self._scale_outputs(linear.path, torch.cat([torch.ones_like(key), key, value]))
            elif (scale := v.get(f"{linear.name}.scale")) is not None:
                if linear.role.endswith("down"):
                    self.input_scales.append((linear.path, scale))
                else:
                    self._scale_outputs(linear.path, scale)

    def _scale_outputs(self, path: str, scale: Tensor) -> None:
        weights = self.found.weights
        weights[f"{path}.weight"] = weights[f"{path}.weight"] * (scale if self._transposed(path) else scale[:, None])
        if f"{path}.bias" in weights:
            weights[f"{path}.bias"] = weights[f"{path}.bias"] * scale

    def _transposed(self, path: str) -> bool:
        return transposed(self.backbone.get_submodule(path))

    def _check_order(self, method: Method, path: str) -> None:
        """Raise UsageError where an adapter of a lower task comes between a linear map and what is merged into it."""
        if any(place["at"] == path for place in self.found.places):
            raise UsageError(
                f"{method.name} changes the output of '{path}' after an adapter of a lower task has: it cannot be "
                "merged into the base's weights.",
                hint="Stack the tasks the other way round, or: --to onnx",
            )


def _adapter(method: Method, p: Params) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return one adapter as `modeling.Adapter` takes it: its settings, and its weights by their names there."""
    assert isinstance(method, Bottleneck)
    width, size = p["down"].shape
    spec: dict[str, Any] = {"width": width, "size": size, "activation": method.activation}
    if "norm" in p:
        spec["norm"] = "in front" if isinstance(method, Bapna) else "inside"
    if maps := sum(name.startswith("mid") and not name.endswith("bias") for name in p):
        spec["maps"] = maps
    if isinstance(method, HoulsbyMultiplicative):
        spec["multiplies"] = True
    elif (scale := getattr(method, "scale", 1.0)) != 1.0:
        spec["scale"] = scale
    return spec, _under("bottleneck", _linears(p))


def _linears(p: Params) -> dict[str, Tensor]:
    """Return a bottleneck's weights as those of linear maps, (out, in), and of a norm."""
    found = {}
    for name, tensor in p.items():
        key, bias, _ = name.partition("_bias")
        here = f"between.{int(key[3:]) - 1}" if key.startswith("mid") else key
        if bias or key == "norm":
            found[f"{here}.{'bias' if bias else 'weight'}"] = tensor.reshape(-1)  # (1, n)
        else:
            found[f"{here}.weight"] = tensor.T.contiguous()
    return found


def _under(prefix: str, tensors: Params) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
