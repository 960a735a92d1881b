"""Full fine-tuning with FSDP: each process keeps a shard of every weight, of its gradient and of Adam's moments.

`accelerate launch --use_fsdp …` asks for it. A layer's weights are gathered just before it is computed, and its
gradients are added up over all processes and scattered again. The frozen base itself and the head are in every process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from adaptree.errors import UsageError
from adaptree.methods.dense import Full
from adaptree.training import distributed

if TYPE_CHECKING:
    from adaptree.kinds import Kind
    from adaptree.methods import Method
    from adaptree.models.base import Base
    from adaptree.models.hooks import HookedModel


def wanted(method: Method, kind: Kind, base: Base) -> bool:
    """Return whether the processes were started with FSDP; raise UsageError if it is not for this training."""
    if distributed.size() == 1 or os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return False
    if not isinstance(method, Full):
        raise UsageError(
            f"FSDP is for full fine-tuning: the weights of {method.name} are few enough for every process.",
            hint="accelerate launch --multi_gpu … in the place of --use_fsdp",
        )
    if not kind.single or base.encoder.writer is not None:
        raise UsageError(
            f"FSDP needs as many forward passes in every process, which kind {kind.name} on this base does not have.",
            hint="accelerate launch --multi_gpu … in the place of --use_fsdp",
        )
    return True


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which this process has a shard."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, gathered from all processes if it is sharded: then each of them has to call this."""
    gathered: Any = tensor.detach()
    return (gathered.full_tensor() if is_sharded(tensor) else gathered).cpu()  # type: ignore[no-any-return]


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    part: Any = tensor
    return part.to_local() if is_sharded(tensor) else part  # type: ignore[no-any-return]


def like(p: Tensor, tensor: Tensor) -> Tensor:
    """Return a whole tensor, which every process has, placed as `p` is: on its device, sharded if it is."""
    if not is_sharded(p) or not tensor.dim():
        return tensor.to(p.device)
    from torch.distributed.tensor import distribute_tensor

    own: Any = p
    return distribute_tensor(tensor.to(p.device), own.device_mesh, own.placements, src_data_rank=None)


def shard(hooked: HookedModel, names: Iterable[str], device: str) -> dict[str, nn.Parameter]:
    """Shard these weights of a model's private copy, layer by layer; return them by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    names, backbone = list(names), hooked.backbone
    mesh = init_device_mesh(device, (distributed.size(),))
    trained = {id(backbone.get_parameter(name)) for name in names}
    frozen = {p for p in backbone.parameters() if id(p) not in trained}
    chosen = {hooked.sites.layer_of(name) for name in names}
    paths = [path for layer, path in enumerate(hooked.sites.layers) if layer in chosen]
    for module in (*map(backbone.get_submodule, paths), backbone):
        fully_shard(module, mesh=mesh, ignored_params=frozen)
    for module in backbone.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # gradients are sums over rows
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    return {name: backbone.get_parameter(name) for name in names}


@contextmanager
def gathered(hooked: HookedModel) -> Iterator[None]:
    """Have all weights whole in every process, so that each may compute as many batches as it has."""
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in hooked.backbone.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(module is not hooked.backbone, recurse=False)


def norm(gradients: Iterable[Tensor], group: distributed.ProcessGroup) -> float:
    """Return the norm of gradients of which some are sharded, the same in every process."""
    shards = whole_ones = 0.0
    for gradient in gradients:
        square = float(local(gradient).square().sum(dtype=torch.float64))
        if is_sharded(gradient):
            shards += square
        else:
            whole_ones += square
    return float((group.sum([shards])[0] + whole_ones) ** 0.5)
