"""Selects the measured kernel that times an operation.

Preferred is the engine's own on this GPU, then another engine's on this GPU, then a borrowed one. A GPU without
measurements of an operation borrows those of its architecture's reference GPU, scaled to its own peaks, or the assumed
values of its architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from sizing.catalog import profiles
from sizing.catalog.shelf import only
from sizing.model.operations import Routed
from sizing.specs.errors import Fault, UntimedError
from sizing.specs.gpu import CollectiveRow, EfficiencyRow, Gpu
from sizing.specs.kernels import Chips, ExpertKernel, MeasuredKernels, Surface, carried

SHARES = ("ec", "eA", "eC")  # constants that are shares of the peak: of products, prefill and latent attention
STARTS = ("L0",)  # constants of work outside the tensor cores, in tokens that these would multiply meanwhile
# Constants of fused experts that only move values.
MOVED = ("copy_us_per_input", "copy_us_per_width", "pair_us_per_input", "pair_us_per_width", "token_us_per_input")


class Choice(NamedTuple):
    """A row chosen for an operation, and whether it was measured on this GPU or borrowed."""

    row: Any
    borrowed_from: str | None


@dataclass(eq=False, repr=False)
class KernelRows:
    """The rows and measured kernels that time one engine on one GPU. `picked` holds those in use, by what was asked for."""

    gpu: Gpu
    engine: str
    picked: dict[tuple[Any, ...], Choice] = field(default_factory=dict)
    unmeasured: set[tuple[Any, ...]] = field(default_factory=set)

    def choices(self) -> dict[tuple[str, str], Choice]:
        """The rows in use, by operation and the precision that was asked for."""
        return {
            (memo[1], memo[2][0]) if memo[0] == "surface" else (memo[0], memo[1][0]): choice
            for memo, choice in self.picked.items()
        }

    def choose(
        self,
        operation: str,
        precisions: Iterable[str],
        *,
        distance: Callable[[Any], Any] = lambda row: 0.0,
        accept: Callable[[Any], bool] = lambda row: True,
        key: tuple[Any, ...] = (),
    ) -> Choice:
        """The row of an operation in the first of `precisions` that has one, with the least `distance`.

        Rows of the GPU come before those of its architecture's assumed set. Raises UntimedError if there is none.
        """
        wanted = tuple(precisions)
        memo = (operation, wanted, *key)
        if memo not in self.picked:
            self.picked[memo] = self._search(operation, wanted, distance, accept)
        return self.picked[memo]

    def _search(
        self,
        operation: str,
        precisions: tuple[str, ...],
        distance: Callable[[Any], Any],
        accept: Callable[[Any], bool],
    ) -> Choice:
        for rows, source in self._pools():
            for precision in precisions:
                found = [
                    row
                    for row in rows
                    if row.operation == operation and getattr(row, "precision", precision) == precision and accept(row)
                ]
                if found:
                    best = min(found, key=lambda row: (distance(row), self._engine_rank(row.engine)))
                    return Choice(best, source)
        first, *others = dict.fromkeys(precisions)
        instead = f", nor in {' or '.join(others)} in its place" if others else ""
        raise UntimedError(
            Fault(
                f"{self.gpu.name} ({self.gpu.architecture}) has no measured or assumed efficiency of {operation} in "
                f"{first}{instead}",
                field="efficiency",
                remedy="use another precision of weights or cache, or a row in a GPU profile of your own",
            )
        )

    def surface(
        self,
        operation: str,
        precisions: tuple[str, ...],
        *,
        fits: Callable[[Surface], Any] = lambda surface: 0,
        key: tuple[Any, ...] = (),
    ) -> Surface | None:
        """The measured kernel of an operation: on this GPU, or else on the reference GPU of its architecture.

        The first of `precisions` comes first, then the engine's own kernels, then the least `fits`. None if nothing was
        measured, or if this GPU has a measurement of another form.
        """
        memo = ("surface", operation, precisions, *key)
        if memo not in self.picked and memo not in self.unmeasured:
            rows = [row for row in profiles.surfaces(self.gpu.architecture) if row.operation == operation]
            own = [row for row in rows if row.gpu == self.card]
            if not own and any(row.operation == operation for row in self.gpu.efficiency):  # measured, of another form
                rows = []
            of = own or [row for row in rows if row.gpu == self.chips.reference]
            found = [row for row in of if row.precision in precisions]
            if not found:
                self.unmeasured.add(memo)
                return None
            best = min(
                found,
                key=lambda row: (
                    precisions.index(row.precision),
                    self._engine_rank(row.engine),
                    fits(row),
                    -row.points,
                ),
            )
            self.picked[memo] = self._carried(best)
        found_here = self.picked.get(memo)
        return None if found_here is None else found_here.row

    def _carried(self, row: Surface | ExpertKernel) -> Choice:
        """A measured kernel adapted to this GPU: shares of another GPU are scaled by its work outside the tensor cores."""
        if row.gpu == self.card:
            return Choice(row, None)
        sheet, memory = self.gpu.datasheet.dense_tflops, self.gpu.datasheet.memory
        weight = self.chips.weight_of_the_rest(self.card, sheet.bf16 or sheet.fp16)
        if isinstance(row, Surface):
            shares = {name: carried(share, weight) for name, share in row.constants.items() if name in SHARES}
            starts = {name: tokens * weight for name, tokens in row.constants.items() if name in STARTS}
            return Choice(replace(row, constants={**row.constants, **shares, **starts}), row.gpu)
        # Slow tensor cores hide what a long tile costs besides behind the products of others, as in tables of L40S (see `chips`).
        here: dict[str, Any] = {
            "tile_rows": row.tile_rows * weight,
            "tile_depth": row.tile_depth * weight * min(1.0, weight),
        }
        slower = profiles.load_gpu(row.gpu).spec.datasheet.memory.bandwidth_gb_per_s / memory.bandwidth_gb_per_s
        here |= {name: getattr(row, name) * slower for name in MOVED}
        return Choice(replace(row, compute=carried(row.compute, weight), **here), row.gpu)

    @cached_property
    def card(self) -> str:
        """The card whose measured kernels count as this GPU's own."""
        return profiles.card_of(self.gpu)

    @property
    def chips(self) -> Chips:
        """The constants of the GPUs of this architecture."""
        return only(MeasuredKernels).chips[self.gpu.architecture]

    def _pools(self) -> Iterator[tuple[Iterable[EfficiencyRow], str | None]]:
        """Yield the GPU's own rows, then its architecture's assumed set, which is read only if needed."""
        yield self.gpu.efficiency, None
        assumed = profiles.borrowed(self.gpu.architecture)
        if assumed is not None:
            yield assumed.efficiency, assumed.borrowed_from

    def _engine_rank(self, engine: str, wanted: str | None = None) -> int:
        return 0 if engine == (wanted or self.engine) else (1 if engine == "any" else 2)

    def experts(
        self, wanted: tuple[str, ...], routed: Routed, engine: str, shape: str, one_kernel: bool = False
    ) -> ExpertKernel | None:
        """The measured kernel of experts, on this GPU or else on another of its architecture; that of `engine` before
        others, and one for this `shape` alone before others of an engine. With `one_kernel`, one rank runs that of several.
        """
        ranks = 2 if one_kernel else routed.ranks
        key = ("experts", wanted, engine, shape, routed.gated, ranks > 1, routed.dispatch)
        if key not in self.picked:
            every = profiles.expert_kernels(self.gpu.architecture)
            rows = [row for row in every if row.precision in wanted and shape in (row.shapes or (shape,))]
            fitting = [row for row in rows if row.ranks == routed.dispatch and row.gated == routed.gated]
            fitting = fitting or [row for row in rows if row.runs(routed.gated, ranks)]
            rows = fitting or [row for row in rows if row.runs(True, ranks)]
            if not rows:
                return None
            best = min(
                rows,
                key=lambda row: (
                    wanted.index(row.precision),
                    row.gpu != self.card,
                    self._engine_rank(row.engine, engine),
                    not row.shapes,
                ),
            )
            self.picked[key] = self._carried(best)
        found: ExpertKernel = self.picked[key].row
        return found

    def collective(self, operation: str, gpus: int, plain: bool, engine: str | None = None) -> CollectiveRow | None:
        """The row of a collective over at least `gpus` GPUs; NCCL's own (`any`) if `plain`, that of an `engine` if stated."""

        def fits(row: CollectiveRow) -> bool:
            return row.gpus >= gpus and (row.engine == "any" or not plain) and engine in (None, row.engine)

        memo = (operation, ("any",), gpus, engine)
        if memo not in self.picked:
            of = self.exchanging
            every = (row for row in of.efficiency if isinstance(row, CollectiveRow))
            rows = [row for row in every if row.operation == operation and fits(row)]
            if not rows:
                return None
            best = min(
                rows, key=lambda row: (row.gpus, row.engine == "any" and not plain, self._engine_rank(row.engine))
            )
            self.picked[memo] = Choice(best, None if of is self.gpu else of.name)
        found: CollectiveRow = self.picked[memo].row
        return found

    @cached_property
    def exchanging(self) -> Gpu:
        """The GPU whose collectives count: this one, or its architecture's reference if it has none and no faster link."""
        link, chips = self.gpu.datasheet.link, only(MeasuredKernels).chips.get(self.gpu.architecture)
        if link is None or chips is None or any(isinstance(row, CollectiveRow) for row in self.gpu.efficiency):
            return self.gpu
        reference = profiles.load_gpu(chips.reference).spec
        known = reference.datasheet.link
        no_faster = known is not None and link.gb_per_s_per_direction <= known.gb_per_s_per_direction
        return reference if no_faster else self.gpu
