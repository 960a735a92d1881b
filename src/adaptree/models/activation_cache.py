"""The activation cache: hidden states below the lowest trained layer, computed once and read back in every epoch.

A file holds the states that enter that layer, for one set of distinct inputs, each padded to its canonical length: the
same bits that the layers below would give. The file's name is a digest of everything that changes a bit, so later
epochs, other seeds, sizes and methods, a search, and the same training tomorrow all find it. A checksum in it is
verified whenever it is opened, and a damaged file is computed again.

The states are those of fp32, in which a task predicts, also where training steps are computed in bf16. Where there is
no room for a file, such steps compute the lower layers in fp32 too: the bits do not depend on the cache.
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
from torch import Tensor

from adaptree.data.batch import canonical, collate, group
from adaptree.data.encode import Encoding
from adaptree.errors import TrainingError
from adaptree.methods import Method
from adaptree.methods.layers import top_layers
from adaptree.models import shared_states
from adaptree.models.base import Base
from adaptree.models.cache_files import (
    FOLDER,
    Damaged,
    NotCacheable,
    alone,
    last_line,
    make_room,
    mapped,
    reserve,
    sized,
)
from adaptree.models.hooks import HookedModel
from adaptree.models.restart import CannotRestart, check_restart, key_of, private_copy, restart, states_below
from adaptree.tasks import cache_folder

Array = np.ndarray[Any, Any]
FORMAT = 2
PRECISIONS = {"fp32": np.float32, "fp16": np.float16}
BATCH = 64
MATHS = (
    "get_num_threads", "backends.cpu.get_cpu_capability", "backends.mkldnn.enabled",
    "are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "backends.cuda.matmul.allow_tf32",
    "backends.fp32_precision", "backends.mkldnn.matmul.fp32_precision", "backends.cuda.matmul.fp32_precision",
    "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
)  # fmt: skip
"""Settings of torch that may change the bits of a result."""
VARIABLES = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
"""Environment variables of its libraries that may do so."""


def _feed(hooked: HookedModel, depth: int, form: int, states_of: Callable[[Sequence[Encoding]], Tensor]) -> None:
    """Let the layers below `depth` of a model give the states of each batch that `states_of` returns."""
    state: list[Tensor] = []

    def feed(rows: Sequence[Encoding]) -> None:
        state[:] = [states_of(rows)]

    restart(hooked, depth, form, lambda: state[0])
    hooked.feed = feed


def depth_for(method: Method, hooked: HookedModel, touched: Iterable[str], *, dropout: bool = False) -> int:
    """Return the layer below which a run changes nothing; raise NotCacheable if there is none.

    `touched` are the paths of all modules and weights that the run acts on, and `dropout` says whether the base's
    dropout is on.
    """
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
        raise NotCacheable(f"{method.name} acts below layer {lowest}, the lowest that it declares")
    return lowest


def open_cache(
    base: Base,
    hooked: HookedModel,
    depth: int,
    inputs: Callable[[], Sequence[Encoding]],
    precision: str,
    note: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Put a run's lower layers on states from the cache, computing them first if they are not there.

    `precision` is that of the cache, or "off". Raise NotCacheable where it cannot be used. `stopped` is called before
    each batch that is computed: if it returns true, nothing is kept and KeyboardInterrupt is raised.
    """
    form = _form(base, depth)
    if precision == "off":
        raise NotCacheable("the activation cache is switched off (--activation-cache off)")
    distinct = {key_of(row): row for row in inputs()}
    ordered = sorted(distinct.items(), key=lambda item: (canonical(len(item[1].ids)), item[0]))
    members: dict[int, list[tuple[bytes, Encoding]]] = {}
    for key, row in ordered:
        members.setdefault(canonical(len(row.ids)), []).append((key, row))
    dtype = np.dtype(PRECISIONS[precision])
    sizes = {length: len(of) * length * base.width for length, of in members.items()}
    total = sum(sizes.values()) * dtype.itemsize
    path = cache_folder.folder() / FOLDER / f"{_name(base, depth, precision, ordered)}.states"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock"), stopped):
            flat, again = None, ""
            try:
                flat = mapped(path, dtype, total)
            except Damaged:
                again = "the file of the activation cache was damaged and is dropped: "
            if flat is None:
                make_room(path, total)
                flat = _shared(path, dtype, total, note)
            if flat is None:
                lower = f"{depth} lower layer{'s' * (depth > 1)}"
                note(f"{again}computing the {lower} once for {len(ordered):,} texts ({sized(total)}).")
                _fill(base, depth, members, sizes, dtype, path, total, stopped)
                flat = mapped(path, dtype, total)
                facts = {"base": base.name, "layers": depth, "texts": len(ordered), "precision": precision}
                shared_states.offer(path, total, facts, note)
    except OSError as error:
        raise NotCacheable(f"the cache cannot be written ({error.strerror or error})") from error
    except Damaged as error:
        raise NotCacheable(
            f"what was written to {path.parent} is not what is read there: the disk is damaged"
        ) from error
    if flat is None:
        raise NotCacheable(f"another process removed the file from {path.parent}")
    groups, places = _views(flat, members, sizes, base.width)

    def states_of(rows: Sequence[Encoding]) -> Tensor:
        found = [places[key_of(row)] for row in rows]
        states = groups[found[0][0]][[at for _, at in found]]
        return torch.from_numpy(states.astype(np.float32, copy=False)).to(base.device)

    _feed(hooked, depth, form, states_of)


def _shared(path: Path, dtype: np.dtype[Any], total: int, note: Callable[[str], None]) -> Array | None:
    """Return the states that another machine has computed and shared; None if there are none that are whole."""
    if not shared_states.fetch(path, total, note):
        return None
    try:
        found = mapped(path, dtype, total)
    except Damaged:
        path.unlink(missing_ok=True)
        note("a file of the shared activation cache is damaged, and is computed again.")
        return None
    note(f"the lower layers' states come from the shared activation cache ({sized(total)}).")
    return found


def compute_below(base: Base, hooked: HookedModel, depth: int, precision: str) -> None:
    """Compute a run's lower layers for each batch as the cache would hold them: in fp32, whatever the run computes in.

    `precision` is that of the cache. Raise NotCacheable for a base that cannot be restarted, and is never cached.
    """
    form, copy = _form(base, depth), private_copy(base.hooked)

    def states_of(rows: Sequence[Encoding]) -> Tensor:
        with torch.no_grad(), torch.autocast(torch.device(base.device).type, enabled=False):
            states = states_below(copy, depth, collate(rows, base.encoder.pad_id, base.device))
        if precision == "fp16":
            _check_range(states)
            return states.half().float()
        return states

    _feed(hooked, depth, form, states_of)


def _form(base: Base, depth: int) -> int:
    """Return how a layer's output is wrapped (`check_restart`); raise NotCacheable if a base cannot be restarted."""
    try:
        return check_restart(base.hooked, depth)
    except CannotRestart as why:
        raise NotCacheable(str(why)) from why


def _check_range(states: Tensor) -> None:
    if float(states.abs().max()) > float(np.finfo(np.float16).max):
        raise TrainingError("some states of the lower layers are too large for fp16.", hint="--activation-cache fp32")


def _name(base: Base, depth: int, precision: str, ordered: Sequence[tuple[bytes, Encoding]]) -> str:
    """Return a digest of everything that changes a bit of the states."""
    import transformers

    backbone: Any = base.hooked.backbone
    config = {key: value for key, value in backbone.config.to_dict().items() if not key.startswith("_")}
    facts = (
        FORMAT, base.fingerprint, depth, base.hooked.sites.layers[depth - 1], precision, base.encoder.pad_id, config,
        backbone.config._attn_implementation, str(base.hooked.sites.dtype), torch.__version__, transformers.__version__,
        _hardware(torch.device(base.device)), [_setting(name) for name in MATHS],
        [os.environ.get(name) for name in VARIABLES],
    )  # fmt: skip
    digest = hashlib.sha256(repr(facts).encode())
    for key, _ in ordered:
        digest.update(len(key).to_bytes(4, "little") + key)
    return digest.hexdigest()[:40]


def _setting(name: str) -> Any:
    """Return a setting of torch: None if this version has none, "mixed" if its old and new names for it disagree."""
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
    """Return the states by length, each (rows, length, width), and each input's length and row among them."""
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
    """Compute the states and write the file; it appears at `path` only when it is complete."""
    partial = path.with_suffix(".partial")  # a fixed name: we hold the lock, so no other process writes it
    copy = private_copy(base.hooked)
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
                    states = states_below(copy, depth, inputs)
                    if dtype == np.float16:
                        _check_range(states)
                    groups[length][at] = states.cpu().numpy()
        flat.flush()
        line = last_line(path, flat.view(np.uint8))
        del flat, groups
        with partial.open("ab") as file:
            file.write(line)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
