"""The trunk: below the lowest layer that a method touches nothing ever changes, so it is computed once and kept.

A file holds the states that enter that layer, for one set of distinct inputs, each at its canonical length: the same
bits that the layers below would give. Its name is a digest of everything that moves a bit, so whoever asks for the same
states finds them: later epochs, other seeds, sizes and methods, a search, the same training tomorrow.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.data.batch import canonical, collate, group
from adaptree.data.encode import Encoding
from adaptree.methods import Method
from adaptree.models import cache_folder
from adaptree.models.base import Base
from adaptree.models.cache_files import NotCacheable, alone, make_room, mapped, reserve, sized
from adaptree.models.hooks import HookedModel, probe_inputs, share
from adaptree.training.settings import top_layers

Array = np.ndarray[Any, Any]
FORMAT = 1
PRECISIONS = {"fp32": np.float32, "fp16": np.float16}
BATCH = 64
MATHS = (
    "get_num_threads", "backends.cpu.get_cpu_capability", "backends.mkldnn.enabled",
    "are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "backends.cuda.matmul.allow_tf32",
    "backends.fp32_precision", "backends.mkldnn.matmul.fp32_precision", "backends.cuda.matmul.fp32_precision",
    "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
)  # fmt: skip
"""What torch is asked about the way it computes."""
VARIABLES = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
"""What its libraries are told about that by the environment."""


class Trunk:
    """States of some rows in a file, and a tree whose layers below `depth` give them back instead of computing."""

    def __init__(
        self, hooked: HookedModel, depth: int, form: int, groups: dict[int, Array], places: dict[bytes, tuple[int, int]]
    ) -> None:
        self._groups, self._places = groups, places
        self._state: Tensor | None = None
        self._device = next(hooked.backbone.parameters()).device
        _cut(hooked, depth, form, self._give)
        hooked.feed = self.feed

    def feed(self, rows: Sequence[Encoding]) -> None:
        """Have the states of a batch ready for the pass that follows."""
        found = [self._places[_key(row)] for row in rows]
        states = self._groups[found[0][0]][[at for _, at in found]]
        self._state = torch.from_numpy(states.astype(np.float32, copy=False)).to(self._device)

    def _give(self) -> Tensor:
        assert self._state is not None
        return self._state


def depth_for(
    method: Method, hooked: HookedModel, touched: Iterable[str], *, precision: str, dropout: bool = False
) -> int:
    """Return the layer below which a run changes nothing; raise NotCacheable if there is none.

    `touched` are the paths of all modules and weights that the run acts on.
    """
    if precision == "off":
        raise NotCacheable("the activation cache is switched off (--activation-cache off)")
    if dropout:
        raise NotCacheable("the base's dropout is on")
    depth = hooked.sites.depth
    if not (lowest := method.lowest(hooked.sites)):
        if depth == 1:
            raise NotCacheable("this base has one layer, and it is trained")
        if not method.alone:
            raise NotCacheable("it acts in all layers")
        top = f"top:{top_layers(depth)}"
        raise NotCacheable(f"all layers are trained; --fast, or --layers {top}, leaves the lower ones alone")
    if any(hooked.sites.layer_of(f"{path}.") < lowest for path in touched):  # a plug-in's, perhaps
        raise NotCacheable(f"{method.name} acts below layer {lowest}, the lowest that it says it touches")
    return lowest


def restarts(hooked: HookedModel, depth: int) -> int:
    """Try to restart this base at a layer, bit for bit; how many things its layers return (0: one, not in a tuple)."""
    sites = hooked.sites
    if any(site.calls > 1 for site in sites.sites):
        raise NotCacheable(f"the layers of {sites.architecture} share their weights")
    unlike = NotCacheable(f"{sites.architecture} cannot be restarted from the middle with the same bits")
    inputs = probe_inputs(hooked.backbone)
    device = next(hooked.backbone.parameters()).device
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        tree = tree_of(hooked)
        whole = tree.backbone(**inputs).last_hidden_state
        output = _below(tree, depth, inputs)
        rest = output[1:] if isinstance(output, tuple) else ()
        if any(extra is not None for extra in rest):  # such as T5's position bias, which the layers above need
            raise unlike
        form = len(output) if isinstance(output, tuple) else 0
        _cut(tree, depth, form, lambda: _state(output))
        if not torch.equal(tree.backbone(**inputs).last_hidden_state, whole):
            raise unlike
    return form


def tree_of(hooked: HookedModel) -> HookedModel:
    """The same base in a tree of its own: what is hooked there is met by no other thread."""
    tree = HookedModel(share(hooked.model), hooked.architecture)
    tree.model.eval()
    return tree


def open_cache(
    base: Base,
    hooked: HookedModel,
    depth: int,
    inputs: Callable[[], Sequence[Encoding]],
    precision: str,
    note: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
) -> Trunk:
    """The trunk of a run, found in the cache or computed now; `NotCacheable` says why there is none.

    `stopped` is asked before each batch that is computed: then nothing is kept, and it ends in a KeyboardInterrupt.
    """
    form = restarts(base.hooked, depth)
    distinct = {_key(row): row for row in inputs()}
    ordered = sorted(distinct.items(), key=lambda item: (canonical(len(item[1].ids)), item[0]))
    members: dict[int, list[tuple[bytes, Encoding]]] = {}
    for key, row in ordered:
        members.setdefault(canonical(len(row.ids)), []).append((key, row))
    dtype = np.dtype(PRECISIONS[precision])
    sizes = {length: len(of) * length * base.width for length, of in members.items()}
    total = sum(sizes.values()) * dtype.itemsize
    path = cache_folder.folder() / "trunk" / f"{_name(base, depth, precision, ordered)}.states"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock"), stopped):
            if (flat := mapped(path, dtype, total)) is None:
                make_room(path, total)
                lower = f"{depth} lower layer{'s' * (depth > 1)}"
                note(f"computing the {lower} once for {len(ordered):,} texts ({sized(total)}).")
                _fill(base, depth, members, sizes, dtype, path, total, stopped)
                flat = mapped(path, dtype, total)
    except OSError as error:
        raise NotCacheable(f"the cache cannot be written ({error.strerror or error})") from error
    if flat is None:
        raise NotCacheable(f"another process removes what is written to {path.parent}")
    groups, places = _views(flat, members, sizes, base.width)
    return Trunk(hooked, depth, form, groups, places)


def _key(row: Encoding) -> bytes:
    return row.ids.tobytes() + (b"|" + row.types.tobytes() if row.types is not None else b"")


def _name(base: Base, depth: int, precision: str, ordered: Sequence[tuple[bytes, Encoding]]) -> str:
    """A digest of all that moves a bit of the states."""
    import transformers

    backbone: Any = base.hooked.backbone
    config = {key: value for key, value in backbone.config.to_dict().items() if not key.startswith("_")}
    facts = (
        FORMAT, base.fingerprint, depth, base.hooked.sites.layers[depth - 1], precision, base.encoder.pad_id, config,
        backbone.config._attn_implementation, str(base.hooked.sites.dtype), torch.__version__, transformers.__version__,
        _hardware(torch.device(base.device)), [_asked(name) for name in MATHS], [os.environ.get(v) for v in VARIABLES],
    )  # fmt: skip
    digest = hashlib.sha256(repr(facts).encode())
    for key, _ in ordered:
        digest.update(len(key).to_bytes(4, "little") + key)
    return digest.hexdigest()[:40]


def _asked(name: str) -> Any:
    """A setting of torch: None where this torch has none, "mixed" where its old and new names for it disagree."""
    try:
        value = attrgetter(name)(torch)
        return value() if callable(value) else value
    except AttributeError:
        return None
    except RuntimeError:
        return "mixed"


def _hardware(device: torch.device) -> tuple[str, ...]:
    named = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return (device.type, _processor(), *([named(device)] if named else []))


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _views(
    flat: Array, members: dict[int, list[tuple[bytes, Encoding]]], sizes: dict[int, int], width: int
) -> tuple[dict[int, Array], dict[bytes, tuple[int, int]]]:
    """The states by length, each (rows, length, width); and where each input's are."""
    groups: dict[int, Array] = {}
    places: dict[bytes, tuple[int, int]] = {}
    start = 0
    for length, of in members.items():
        groups[length] = flat[start : start + sizes[length]].reshape(len(of), length, width)
        places |= {key: (length, at) for at, (key, _) in enumerate(of)}
        start += sizes[length]
    return groups, places


def _fill(
    base: Base,
    depth: int,
    members: dict[int, list[tuple[bytes, Encoding]]],
    sizes: dict[int, int],
    dtype: np.dtype[Any],
    path: Path,
    total: int,
    stopped: Callable[[], bool],
) -> None:
    """Compute the states and put the file in its place, whole."""
    partial = path.with_suffix(".partial")  # one name: whoever is here holds the lock, and a dead one's is stale
    tree = tree_of(base.hooked)
    try:
        with partial.open("wb") as file:
            reserve(file, total)
        flat = np.memmap(partial, dtype=dtype, mode="r+")
        groups, _ = _views(flat, members, sizes, base.width)
        with torch.inference_mode(), torch.autocast(torch.device(base.device).type, enabled=False):
            for length, of in members.items():
                for at in group([len(row.ids) for _, row in of], BATCH):
                    if stopped():
                        raise KeyboardInterrupt
                    inputs = collate([of[i][1] for i in at], base.encoder.pad_id, base.device)
                    states = _state(_below(tree, depth, inputs)).cpu().numpy()
                    if dtype == np.float16 and np.abs(states).max() > np.finfo(np.float16).max:
                        raise NotCacheable(
                            "some of its states are too large for fp16; --activation-cache fp32 holds them"
                        )
                    groups[length][at] = states
        flat.flush()
        del flat, groups
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class _Done(Exception):
    pass


def _below(hooked: HookedModel, depth: int, inputs: dict[str, Tensor]) -> Any:
    """What the layer below `depth` returns; what lies above is not computed."""
    kept: list[Any] = []

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        kept.append(output)
        raise _Done

    layer = hooked.backbone.get_submodule(hooked.sites.layers[depth - 1])
    handle = layer.register_forward_hook(stop)
    try:
        with contextlib.suppress(_Done):
            hooked.backbone(**inputs)
    finally:
        handle.remove()
    return kept[0]


def _state(output: Any) -> Tensor:
    state: Tensor = output[0] if isinstance(output, tuple) else output
    return state


def _cut(hooked: HookedModel, depth: int, form: int, give: Callable[[], Tensor]) -> None:
    """In a tree of one's own: let the layers below `depth` compute nothing, and the last of them give the state."""

    def replaced(last: bool) -> Callable[..., Any]:
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            state = give() if last else hidden_states
            return (state, *[None] * (form - 1)) if form else state

        return forward

    for at, path in enumerate(hooked.sites.layers[:depth]):
        hooked.backbone.get_submodule(path).forward = replaced(at == depth - 1)
