"""How a layout batches requests, and what its loads come to: many operating points as columns, or one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.model.attention.terms import Numeric

Array = NDArray[np.float64]
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
Quantiles = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Batching:
    """How a layout batches what it serves: lengths, chunk of prefill, pipeline depth, attention-data ranks, scheduler's step order.

    `isl` are the tokens of a prompt to be prefilled, those in cache left out. A decode step gives a sequence
    `tokens_per_step` on average, several with speculative decoding. `prefilled` prompts come with their cache and first
    token, as to the decode pool of a disaggregated deployment; in a `prefill_pool` nothing ever decodes. `chunk_tokens` is the prompt's share of one step's token budget; `prefill_only` says that a step with a prompt
    carries no decodes (SGLang, vLLM V0). Of stacked layouts `pp` and `dp` are columns.
    """

    isl: float
    osl: float
    chunk_tokens: float
    budget_tokens: float
    prefill_only: bool
    pp: Numeric = 1
    dp: Numeric = 1
    tokens_per_step: float = 1.0
    prefilled: bool = False
    prefill_pool: bool = False
    even_stages: Numeric | None = None

    @property
    def stages(self) -> Numeric:
        """Even stages that would be as fast as those of the pipeline, whose largest holds the others up."""
        return self.pp if self.even_stages is None else self.even_stages

    @property
    def decode_steps(self) -> float:
        """Steps that a request decodes in: one a token after the first, fewer where a step gives several."""
        return (self.osl - 1) / self.tokens_per_step

    @property
    def chunks(self) -> float:
        """Steps that one prompt's prefill takes."""
        return 0.0 if self.prefilled else self.isl / self.chunk_tokens

    @property
    def passes(self) -> Numeric:
        """Whole passes that one prompt's prefill lasts: the chunks of a prompt follow each other through a pipeline."""
        return 0.0 if self.prefilled else 1 + (self.chunks - 1) / self.stages

    @property
    def on_rank(self) -> float:
        """Prompts that fit one step's budget on a rank, 1 where a prompt takes several steps."""
        return max(1.0, self.budget_tokens / self.isl)

    @property
    def flat(self) -> bool:
        """Whether a step with prompts is of another kind than a decode step, however many there are: of their own, or on many ranks."""
        return self.prefill_only or bool(np.any(np.asarray(self.dp) > 1))

    @property
    def most_together(self) -> Numeric:
        """Prompts that share one step at most, those of all attention-data ranks."""
        return self.dp * self.on_rank


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point of a replica: seconds, requests a second, sequences in flight.

    `ttft_s`, `itl_s`, `e2e_s` map `mean` and percentiles to seconds; ITL is 0 where OSL is 1 and no second token exists.
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


@dataclass(frozen=True, slots=True)
class Points:
    """Operating points as columns, one entry a load, with the fields of `Point`; of stacked layouts a row each."""

    requests_per_s: Array
    decoding: Array
    running: Array
    ttft_s: dict[str, Array]
    itl_s: dict[str, Array]
    e2e_s: dict[str, Array]
    prefill_share: Array
    stable: NDArray[np.bool_]

    def row(self, index: int | slice) -> Points:
        """The operating points of one of stacked layouts, or some of one layout's."""
        return Points(*self._fields(lambda values: values[index]))

    def at(self, index: int) -> Point:
        """One operating point of a layout."""
        return Point(*self._fields(lambda values: values[index].item()))

    def _fields(self, taken: Callable[[Any], Any]) -> Iterator[Any]:
        for field in fields(self):
            values = getattr(self, field.name)
            yield {k: taken(v) for k, v in values.items()} if isinstance(values, dict) else taken(values)
