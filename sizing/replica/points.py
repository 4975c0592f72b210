"""How a layout batches requests, and its operating points: many loads as columns, or a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.model.attention import Numeric

Array = NDArray[np.float64]
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
Quantiles = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Batching:
    """How a layout batches: lengths, prefill chunk, pipeline depth, attention-data ranks, the scheduler's step order.

    `isl` counts the tokens of a prompt to be prefilled, without cached ones. `chunk_tokens` is the prompt's share of a
    step's token budget. A decode step gives each sequence `tokens_per_step` tokens on average, several with speculative
    decoding. With `prefill_only`, a step with prefill carries no decodes (SGLang, vLLM V0). `prefilled` prompts arrive with
    their cache and first token, as in the decode pool of a disaggregated deployment.
    At most `slots` requests run at once; others wait. With `ahead`, a step is made up while the one before it runs, so an
    arrival joins one step later. For stacked layouts lengths, slots, chunks, `pp` and `dp` are columns. Either all of them
    decode, or none.
    """

    isl: Numeric
    osl: Numeric
    chunk_tokens: Numeric
    budget_tokens: float
    prefill_only: bool
    pp: Numeric = 1
    dp: Numeric = 1
    tokens_per_step: float = 1.0
    prefilled: bool = False
    even_stages: Numeric | None = None
    slots: Numeric = np.inf
    ahead: bool = False

    @property
    def stages(self) -> Numeric:
        """Number of even stages with the same speed as the pipeline, whose largest stage slows the others."""
        return self.pp if self.even_stages is None else self.even_stages

    @property
    def decodes(self) -> bool:
        """Whether requests have a second token."""
        return self.osl > 1 if isinstance(self.osl, int) else bool(np.all(self.osl > 1))

    @property
    def decode_steps(self) -> Numeric:
        """Decode steps of a request: one per token after the first, fewer if a step gives several tokens."""
        return (self.osl - 1) / self.tokens_per_step

    @property
    def chunks(self) -> Numeric:
        """Steps that the prefill of one prompt takes."""
        return 0.0 if self.prefilled else self.isl / self.chunk_tokens

    @property
    def passes(self) -> Numeric:
        """Whole passes that one prompt's prefill lasts; its chunks follow each other through the pipeline."""
        return 0.0 if self.prefilled else 1 + (self.chunks - 1) / self.stages

    @property
    def on_rank(self) -> Numeric:
        """Prompts that fit one step's budget on a rank; 1 if a prompt takes several steps."""
        return np.maximum(1.0, self.budget_tokens / self.isl)

    @property
    def flat(self) -> bool:
        """Whether steps with prompts differ in kind from decode steps: prefill-only steps, or prompts on several ranks."""
        return self.prefill_only or bool(np.any(np.asarray(self.dp) > 1))

    @property
    def most_together(self) -> Numeric:
        """Most prompts that share one step, over all attention-data ranks."""
        return self.dp * self.on_rank

    @property
    def sharing(self) -> Numeric:
        """How far prompts share steps: 0 where a step holds one prompt, 1 where it holds two or more."""
        return np.minimum(1.0, self.most_together - 1)

    @property
    def later_steps(self) -> Numeric:
        """Decode steps of a request after its first, whose prompts came while it decoded: one fewer with `ahead`."""
        return np.maximum(self.decode_steps - 1 - self.ahead, 0.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point of a replica: seconds, requests/s, sequences that decode, and requests that hold a slot (`running`).

    `ttft_s`, `itl_s`, `e2e_s` map `mean` and percentiles to seconds; ITL is 0 where OSL is 1 and there is no second token.
    `stable` is False where prompts arrive faster than they can be prefilled.
    """

    requests_per_s: float
    decoding: float
    running: float
    ttft_s: dict[str, float]
    itl_s: dict[str, float]
    e2e_s: dict[str, float]
    prefill_share: float
    stable: bool

    @property
    def in_flight(self) -> float:
        """Requests in flight, those that wait for a slot included: Little's law."""
        return self.requests_per_s * self.e2e_s["mean"]


@dataclass(frozen=True, slots=True)
class Points:
    """Operating points as columns, one entry per load, with the fields of `Point`; one row per layout if stacked."""

    requests_per_s: Array
    decoding: Array
    running: Array
    ttft_s: dict[str, Array]
    itl_s: dict[str, Array]
    e2e_s: dict[str, Array]
    prefill_share: Array
    stable: NDArray[np.bool_]

    @property
    def in_flight(self) -> Array:
        """Requests in flight, those that wait for a slot included: Little's law."""
        return self.requests_per_s * self.e2e_s["mean"]

    def row(self, index: int | slice) -> Points:
        """The operating points of one stacked layout, or a slice of one layout's points."""
        return Points(*self._fields(lambda values: values[index]))

    def at(self, index: int) -> Point:
        """One operating point of a layout."""
        return Point(*self._fields(lambda values: values[index].item()))

    @property
    def firsts(self) -> list[Point]:
        """The first operating point of each stacked layout."""
        columns = self._fields(lambda values: values[:, 0].tolist())
        each = (
            (
                [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
                if isinstance(of, dict)
                else of
            )
            for of in columns
        )
        return [Point(*values) for values in zip(*each, strict=True)]

    def _fields(self, taken: Callable[[Any], Any]) -> Iterator[Any]:
        for field in fields(self):
            values = getattr(self, field.name)
            yield {k: taken(v) for k, v in values.items()} if isinstance(values, dict) else taken(values)
