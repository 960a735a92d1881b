"""Only the biases are the task's (Ben-Zaken et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.lora import check_rows
from adaptree.methods.method import Action, Params, Plan, check_flag
from adaptree.methods.sparse import DELTA, Sparse

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class BitFit(Sparse):
    """δ on every bias, of linear maps and of norms alike; BERT's pooler is left out."""

    name: ClassVar[str] = "bitfit"
    main: ClassVar[str] = "queries_and_ffn"
    paper: ClassVar[str] = "Ben-Zaken et al. 2022, BitFit: Simple Parameter-efficient Fine-tuning"
    trains: ClassVar[str] = "every bias, the head"
    choose: ClassVar[str] = "For the smallest task files, where a base has biases."
    lr: ClassVar[float] = 3e-3
    by_layer: ClassVar[bool] = True

    queries_and_ffn: bool = False
    """Only the biases of the queries and of the feed-forward part's first map: half the weights (§4.2)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.name, "queries_and_ffn", self.queries_and_ffn)

    def touched(self, sites: Sites, frozen: Params) -> list[str]:
        """Return the names of the biases in the chosen layers; raise MethodError if there are none."""
        names = [name for name in super().touched(sites, frozen) if name.endswith("bias")]
        if self.queries_and_ffn:
            linears = [linear for linear in sites.linears if linear.role in ("query", "qkv", "up")]
            # DeBERTa's fused map has no bias of its own, and one for the queries beside it.
            wanted = {f"{linear.path}.bias" for linear in linears}
            wanted |= {f"{linear.path.rpartition('.')[0]}.q_bias" for linear in linears if linear.role == "qkv"}
            names = [name for name in names if name in wanted]
        if not names:
            where = "" if self.layers is None else f" in layers {self.layers}"
            which = "of queries or feed-forward parts " if self.queries_and_ffn else ""
            raise MethodError(
                f"bitfit trains biases, and this base ({sites.architecture}) has none {which}{where}".rstrip() + ".",
                hint="Use another method: lora, or houlsby.",
            )
        return names

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        frozen = dict(model.named_parameters())
        return {DELTA + n: torch.zeros(frozen[n].shape) for n in self.touched(sites, frozen)}

    def by_row(self, sites: Sites, v: Params) -> Plan | None:
        names = [name for name in v if name.startswith(DELTA)]
        if not all(name.endswith(".bias") for name in names):  # DeBERTa has biases outside of its maps
            return None
        paths = {name: name.removeprefix(DELTA).removesuffix(".bias") for name in names}
        return {path: _added(path, v[name]) for name, path in paths.items()}

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        frozen = dict(model.named_parameters())
        norms = {norm.path for norm in sites.norms}
        sizes = {n: frozen[n].numel() for n in self.touched(sites, frozen)}
        of_norms = sum(size for n, size in sizes.items() if n.rpartition(".")[0] in norms)
        return {"adapters": sum(sizes.values()) - of_norms, "norms": of_norms}


def _added(path: str, p: Tensor) -> Action:
    """Return the step that adds δ to what a module gives: the bias comes last in linear maps and in norms."""

    def action(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        check_rows("bitfit", path, y, p, axes=1)
        return y + p

    return action
