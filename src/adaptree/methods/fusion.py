"""AdapterFusion: attention over other tasks' adapters, layer by layer (Pfeiffer et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.method import BeforeNorm, Entry, Method, Params, check_number, digest_of, part
from adaptree.methods.pfeiffer import Pfeiffer
from adaptree.methods.variants import HoulsbyFeedforward

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Site, Sites

Watch = Callable[[int, "Tensor"], None]
"""Called with a layer and how much each adapter counts there, (B, T, N)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Fusion(Method):
    """Query, key and value for each layer over the outputs of feed-forward adapters, which stay as they are."""

    name: ClassVar[str] = "fusion"
    main: ClassVar[str] = "regularisation"
    paper: ClassVar[str] = "Pfeiffer et al. 2021, AdapterFusion: Non-Destructive Task Composition"
    trains: ClassVar[str] = "query, key and value over other tasks' adapters, the head"
    choose: ClassVar[str] = "For a small task that larger ones may help: fuse(mnli, qqp, sst2)."
    lr: ClassVar[float] = 3e-4
    alone: ClassVar[bool] = False
    training_only: ClassVar[tuple[str, ...]] = ("regularisation", "init_std")

    regularisation: float = 0.01
    """How much ‖V − I‖² of each layer adds to the loss."""
    init_std: float = 0.02
    """Standard deviation of the initial Q and K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "regularisation", self.regularisation, float, 0)
        check_number(self.name, "init_std", self.init_std, float, 0)
        if self.layers is not None:
            raise MethodError(
                "fusion: the layers are those of the adapters that it fuses.", hint="Leave out --layers and --fast."
            )

    # Not fields: they come with the tasks, and are no part of the method's spelling.
    _parts: ClassVar[tuple[tuple[Method, Params], ...]] = ()
    _watches: ClassVar[tuple[Watch, ...]] = ()
    _without: ClassVar[tuple[int, ...]] = ()
    _same: ClassVar[tuple[int, ...]] = ()
    """For each adapter the first that is equal to it: those of one joint training are computed once."""

    def __repr__(self) -> str:
        """Return the spelling, and a digest of the adapters if it has some: a run over others is another run."""
        spelling = super().__repr__()
        return f"{spelling} over {len(self._parts)} adapters, {digest_of(self._parts)}" if self._parts else spelling

    __str__ = __repr__

    def over(self, parts: Sequence[tuple[Method, Params]]) -> Fusion:
        for method, _ in parts:
            if why := unfit(method):
                raise MethodError(f"fusion: {why}.")
        return self._fusing(parts)

    def _fusing(self, parts: Sequence[tuple[Method, Params]]) -> Fusion:
        return self._with(_parts=tuple(parts), _same=tuple(_first_equal(parts)))

    def watched(self, watch: Watch) -> Fusion:
        """Return a copy that calls `watch` with its attention."""
        return self._with(_watches=(watch,))

    def without(self, adapters: Sequence[int]) -> Fusion:
        """Return a copy with some adapters masked; the others share their weight."""
        if set(range(len(self._parts))) <= set(adapters):
            raise MethodError("fusion: with every adapter masked there is nothing to attend to.")
        return self._with(_without=tuple(adapters))

    def _with(self, **changes: Any) -> Fusion:
        other = copy.copy(self)
        for key, value in changes.items():
            object.__setattr__(other, key, value)
        return other

    def _sites(self, sites: Sites) -> list[Site]:
        if not self._parts:
            raise MethodError("fusion needs adapters to fuse.", hint="--method 'fuse(mnli, qqp)'")
        methods = [method for method, _ in self._parts]
        if why := apart(methods, sites):
            raise MethodError(f"fusion: {why}.", hint="Fuse tasks of the same layers, and of one method.")
        return [site for site in sites.within(methods[0].chosen(sites)) if site.role == "feedforward"]

    def lowest(self, sites: Sites) -> int:
        return min(method.lowest(sites) for method, _ in self._parts) if self._parts else 0

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        from adaptree.core import fusion

        v: dict[str, Tensor] = {}
        for site in self._sites(sites):
            new = fusion.init(site.width, std=self.init_std, generator=generator, dtype=sites.dtype)
            v |= {f"{site.name}.{key}": tensor for key, tensor in new.items()}
        return v

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plans = [method.plan(sites, own) for method, own in self._parts]
        plan: dict[str, Entry] = {}
        for site in self._sites(sites):
            p = part(v, site.name)
            places = (site.path, str(site.closing), sites.layers[site.layer])
            path = next(place for place in places if place in plans[0])
            steps: list[Any] = [plans[i][path] for i in self._distinct]
            put = self._beside if isinstance(steps[0], BeforeNorm) else self._after
            plan[path] = put(site.layer, steps, p)
        return plan

    @property
    def _distinct(self) -> list[int]:
        """The adapters that are computed: the first of equal ones."""
        return sorted(set(self._same))

    @property
    def adapters(self) -> list[tuple[Method, Params]]:
        """The distinct adapters, with their weights."""
        return [self._parts[i] for i in self._distinct]

    @property
    def counts(self) -> list[int]:
        """How often each distinct adapter is there."""
        there = [same for i, same in enumerate(self._same) if i not in self._without]
        return [there.count(i) for i in self._distinct]

    def _beside(self, layer: int, steps: Sequence[BeforeNorm], p: Mapping[str, Tensor]) -> BeforeNorm:
        def change(r: Tensor, h: Tensor) -> Tensor:
            return self._fused(layer, h, [step.changes[0](r, h) for step in steps], p)

        return BeforeNorm(change)

    def _after(self, layer: int, steps: Sequence[Any], p: Mapping[str, Tensor]) -> Any:
        return lambda module, args, h: self._fused(layer, h, [step(module, args, h) for step in steps], p)

    def _fused(self, layer: int, h: Tensor, outputs: Sequence[Tensor], p: Mapping[str, Tensor]) -> Tensor:
        import torch

        from adaptree.core import fusion

        z = torch.stack(list(outputs))
        counts = self.counts
        s = fusion.weights(h, z, p, counts)
        for watch in self._watches:
            watch(layer, self._each(s, counts))
        return fusion.mix(s, z, p)

    def _each(self, s: Tensor, counts: Sequence[int]) -> Tensor:
        """Return (B, T, N) for all adapters from that of the distinct ones; equal ones share their weight."""
        at = [self._distinct.index(same) for same in self._same]
        shares = [0.0 if i in self._without else 1 / counts[k] for i, k in enumerate(at)]
        return s[..., at] * s.new_tensor(shares)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        from adaptree.core import fusion

        return {"adapters": sum(fusion.count(site.width) for site in self._sites(sites)), "norms": 0}

    def penalty(self, v: Params) -> Tensor | None:
        from adaptree.core import fusion

        if not self.regularisation:
            return None
        total: Any = sum(fusion.distance({"value": t}) for name, t in v.items() if name.endswith(".value"))
        return self.regularisation * total  # type: ignore[no-any-return]

    def decays(self, name: str) -> bool:
        """Return False for V, which the penalty keeps near the identity."""
        return not name.endswith(".value") and super().decays(name)


def _first_equal(parts: Sequence[tuple[Method, Params]]) -> Iterator[int]:
    """Yield for each adapter the first one with the same method and the same bits; heads do not count."""
    for method, v in parts:
        yield next(i for i, other in enumerate(parts) if method.alike(other[0]) and _equal(v, other[1]))


def _equal(one: Params, other: Params) -> bool:
    a, b = ({name: t for name, t in v.items() if not name.startswith("head.")} for v in (one, other))
    return a.keys() == b.keys() and all(
        t.shape == b[name].shape and bool((t == b[name]).all()) for name, t in a.items()
    )


def apart(methods: Sequence[Method], sites: Sites) -> str:
    """Return why some methods' adapters are not in the same places; an empty string if they are."""
    if len({method.chosen(sites) for method in methods}) > 1:
        return "the adapters are in different layers"
    closed = any(site.closing is not None for site in sites.sites)
    if closed and len({isinstance(method, Pfeiffer) for method in methods}) > 1:
        return "pfeiffer stands beside a layer's last norm, houlsby_feedforward in front of its residual add"
    return ""


def unfit(method: Method) -> str:
    """Return why a method's adapters cannot be fused; an empty string if they can."""
    if not isinstance(method, Pfeiffer | HoulsbyFeedforward):
        return f"{method} is not one feed-forward adapter a layer"
    if getattr(method, "invertible", False):
        return f"{method} changes the embeddings too"
    return f"{method} has norms of its own" if method.norms else ""
