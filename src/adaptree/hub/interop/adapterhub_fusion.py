"""What `adapters` 1.x saves of AdapterFusion: the fusion, and with `save_adapter_setup` its adapters and head too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import InteropError, WrongBase
from adaptree.hub.interop import maps
from adaptree.hub.interop.adapterhub import HEAD, check_base, library_of, read, read_head, site_of
from adaptree.hub.interop.files import read_config, read_tensors
from adaptree.hub.interop.foreign import Foreign, Place
from adaptree.methods.adapterhub import BranchFusion
from adaptree.methods.fusion import Fusion
from adaptree.methods.variants import HoulsbyFeedforward

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.methods import Method

FUSION, SAFE_FUSION = "adapter_fusion_config.json", "model_adapter_fusion.safetensors"
PICKLED_FUSION = "pytorch_model_adapter_fusion.bin"
SETUP = "adapter_setup.json"


def read_setup(folder: Path, place: Place) -> Foreign:
    """Return a fusion that `save_adapter_setup` saved together with its adapters and its head."""
    setup = read_config(folder, SETUP)
    shape = setup.get("adapter_setup")
    if not isinstance(shape, dict) or shape.get("type") != "Fuse":
        kind = shape.get("type") if isinstance(shape, dict) else shape
        raise InteropError(
            f"'{folder.name}' is a setup of type {kind!r:.40}.",
            hint="Read its adapters one by one, and compose them: stack(a, b), parallel(a, b).",
        )
    names = [name for child in shape.get("children", []) for name in (child.get("children") or [""])]
    return read_fusion(folder / _inside(",".join(map(str, names))), folder, place, setup.get("head_setup"))


def _inside(name: str) -> str:
    """Return the name of a sub-folder; raise InteropError for one that leads elsewhere."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise InteropError(f"{name!r:.60} cannot be the name of an adapter's folder.")
    return name


def read_fusion(folder: Path, around: Path, place: Place, head: Any = None) -> Foreign:
    """Return a fusion whose adapters are in folders of their names within `around`."""
    config = read_config(folder, FUSION)
    check_base(folder, config, place)
    name = str(config.get("name"))
    names = config.get("adapter_names") or name.split(",")
    parts = {str(each): read(around / _inside(str(each)), place) for each in names}
    method, v = _fused(folder, config, name, parts, place)
    where = around / _inside(head) if isinstance(head, str) else around if (around / HEAD).is_file() else folder
    base = str(config.get("model_name") or "")
    return Foreign(library_of(config), name, base, method, v, read_head(where, place), parts)


def _fused(
    folder: Path, config: Mapping[str, Any], name: str, parts: Mapping[str, Foreign], place: Place
) -> tuple[Method, dict[str, Tensor]]:
    import torch

    settings = config.get("config")
    if not isinstance(settings, dict) or not (settings.get("query") and settings.get("key")):
        raise InteropError(f"'{folder.name}' is not read: its fusion has no query and key.")
    for setting in ("query_before_ln", "temperature"):
        if settings.get(setting):
            raise InteropError(f"'{folder.name}' is not read: no fusion here has {setting}.")
    own: dict[str, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(folder, SAFE_FUSION, PICKLED_FUSION).items():
        module, found, part = key.partition(f".adapter_fusion_layer.{name}.")
        site = site_of(module, place) if found else None
        if site is None or site.role != "feedforward":
            raise maps.unplaced([key], place.sites)
        own.setdefault(site.name, {})[part] = tensor
    method: Fusion = BranchFusion()
    if settings.get("residual_before"):
        closed = any(site.closing is not None for site in place.sites.sites)
        biased = any(bool(p.get("query.bias", torch.zeros(1)).any()) for p in own.values())
        if closed or biased or not all(type(part.method) is HoulsbyFeedforward for part in parts.values()):
            raise InteropError(
                f"'{folder.name}' is not read: it adds the residual before it attends (residual_before), which is one "
                "of our fusions only over adapters that read the feed-forward part, without a bias in its query."
            )
        method = Fusion()
    method = method.over([(part.method, part.v) for part in parts.values()])
    v: dict[str, Tensor] = {}
    for site in method._sites(place.sites):
        p, d = own.pop(site.name, {}), site.width
        wanted = {"query.weight": (d, d), "query.bias": (d,), "key.weight": (d, d), "value.weight": (d, d)}
        p = {"query.bias": torch.zeros(d), **p, **({} if settings.get("value") else {"value.weight": torch.eye(d)})}
        if bad := [key for key, shape in wanted.items() if key not in p or tuple(p[key].shape) != shape]:
            raise WrongBase(f"'{folder.name}': {bad[0]} of layer {site.layer} is missing, or does not fit this base.")
        for ours, theirs in (("query", "query.weight"), ("key", "key.weight"), ("value", "value.weight")):
            v[f"{site.name}.{ours}"] = p[theirs].T.contiguous()
        if isinstance(method, BranchFusion):
            v[f"{site.name}.query_bias"] = p["query.bias"][None]
    if own:
        raise InteropError(f"'{folder.name}' is broken: it fuses in layers where there are no adapters.")
    return method, v
