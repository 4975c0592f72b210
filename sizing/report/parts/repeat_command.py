"""The command that repeats an answer: `llmsize simulate` for the answer's deployment and load."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sizing.answers.answer import Answer, Pool
from sizing.catalog.files import expanded
from sizing.catalog.shelf import is_path
from sizing.model.architecture import SIZES
from sizing.question.options import OPTIMISATION_OPTIONS, SERVING_OPTIONS
from sizing.question.question import Question, SeparatePools
from sizing.replica.replica import Replica, lowered_from
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.gpu import GpuType
from sizing.specs.units import MILLI

SWITCHED = ""  # the value of an option that takes none
MOST_TOGETHER = 16  # simulated together; of more equal replicas, one under its share gives the same result in less time
MOST_AT_ONCE = 50_000  # documents of a batch
EVENLY = {"--routing": "round-robin"}


def command(best: Answer, question: Question) -> str:
    """The command line, quoted for a shell, that simulates an answer under its own load.

    It has the limits of the question, so its exit code says whether they hold.
    """
    service, chosen, sides = question.service, best.decode.replica, question.space.pools if best.separate else None
    options = {
        "-m": question.origin.workload.model,
        "-g": None if sides else gpu_argument(chosen.gpu_type, question),
        "--precision": chosen.precision,
        "--kv-precision": service.kv_precision if service.kv_precision != "auto" else None,
        "--engine": f"{service.engine.name}:{service.engine_version}",
        **({f"--{name}": size for name, size in _sizes(best.pool)} if sides is None else {}),
        "--disaggregate": None if sides is None else _pools(best, question, sides),
        **dict(_stated(question, chosen, SERVED)),
        "--task": service.task if service.model.pooled else None,
        **dict(_stated(question, chosen, OPTIMISED)),
        **_thinking(service.extras.cached.think_time_s),
        **_lengths(question),
        **_load(best, question),
        **dict(_limits(question)),
    }
    words = (
        str(word)
        for name, value in options.items()
        if value is not None
        for word in (name, value)
        if word is not SWITCHED
    )
    return shlex.join(("llmsize", "simulate", *words))


def _pools(best: Answer, question: Question, sides: SeparatePools) -> str:
    """The options of both pools, each with the GPU name as written by the user."""

    def written(pool: Pool, gpu: str | None) -> str:
        layout = "".join(f"{name}{size}" for name, size in _sizes(pool))
        return f"{pool.name}={pool.count}x{gpu or gpu_argument(pool.replica.gpu_type, question)}:{layout}"

    return f"{written(best.prefill, sides.prefill.pool.gpu)},{written(best.decode, sides.decode.pool.gpu)}"


def _sizes(pool: Pool) -> Iterator[tuple[str, int]]:
    """The sizes of a pool's layout to state: TP always, the others if above one."""
    found = ((name, getattr(pool.replica.layout, name)) for name in SIZES)
    return ((name, size) for name, size in found if size > 1 or name == "tp")


def gpu_argument(gpu_type: GpuType, question: Question) -> str:
    """The name of a GPU type on the command line: the path of a user's own file, else its id."""
    ids = {known.id for known in question.space.gpu_types}
    for text in question.origin.workload.gpu:
        path = expanded(text)
        if is_path(text) and (str(path) == gpu_type.id or (path.stem == gpu_type.id and str(path) not in ids)):
            return text
    return gpu_type.id


# Options in the order of a command line, with functions for values that need another text.
SERVED = (
    "memory_fraction", "max_num_seqs", "max_num_batched_tokens", "cuda_graphs_gib", "kv_cache_bytes", "max_total_tokens",
    "cpu_offload_gb", "offload_backend", "mamba_full_memory_ratio", "max_mamba_cache_size", "pp_layers", "prefix_caching",
    "enforce_eager", "language_model_only", "all2all_backend", "expert_imbalance", "redundant_experts",
)  # fmt: skip
OPTIMISED = tuple(field.name for field in OPTIMISATION_OPTIONS)
FIELDS = {field.name: field for field in (*SERVING_OPTIONS, *OPTIMISATION_OPTIONS)}
WRITERS: dict[str, Callable[[Any], str]] = {
    "kv_cache_bytes": "{:.0f}".format,
    "pp_layers": lambda layers: ",".join(map(str, layers)),
    "prefix_hit": "{:g}".format,
    "think_time": "{:g}s".format,
}


def _stated(question: Question, chosen: Replica, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield as options the stated fields in `names`, and the number of sequences if recurrent states bound it."""
    service = question.service
    for name in names:
        value: object = service
        for step in (FIELDS[name].field or "").split("."):
            value = None if value is None else getattr(value, step)
        if name == "max_num_seqs" and not value and lowered_from(chosen) is not None:
            value = chosen.settings.max_num_seqs
        flag, _, no = FIELDS[name].flags[0].partition("/")
        if value is True or (value is False and no):
            yield flag if value else no, SWITCHED
        elif value is not None and value is not False:
            yield flag, WRITERS.get(name, str)(value)


def _thinking(think_s: float | None) -> dict[str, str]:
    """The option of the time between turns, which the think time of users may have given: the command states a rate."""
    return {} if think_s is None else {"--think-time": WRITERS["think_time"](think_s)}


def _lengths(question: Question) -> dict[str, float | None]:
    """The options of the lengths: the means, the maxima of spread lengths, and the context length if it differs."""
    workload, encoder = question.origin.workload, question.service.extras.encoder
    tokens = workload.tokens
    of_images = {"isl": encoder.tokens if encoder else 0, "osl": 0}  # --images adds these
    first = tokens.prompts[0] if tokens.prompts else tokens.isl  # the first turn: --turns derives the others
    found: dict[str, float | None] = {
        "--isl": first - of_images["isl"],
        "--osl": question.service.output_tokens or None,
    }
    longest = workload.longest - tokens.longest  # a pooling task has no output
    for name in ("isl", "osl"):
        std, most = getattr(tokens, f"{name}_std"), getattr(tokens, f"{name}_max")
        found |= {f"--{name}-std": std, f"--{name}-max": most - of_images[name] if std is not None else None}
        longest += most if std is not None else getattr(tokens, name)
    longest += max(tokens.prompts) - tokens.isl if tokens.prompts else 0
    return {
        **found,
        "--max-model-len": question.service.max_model_len if question.service.max_model_len != longest else None,
    }


def _load(best: Answer, question: Question) -> dict[str, str]:
    """The options of the load of all replicas, or of one if there are many: a rate, requests in flight, or a batch."""
    documents = question.target.documents
    if best.separate:
        return {"--rps": f"{best.requests_per_s:.6g}"} if documents is None else {**_at_once(documents), **EVENLY}
    alike = not question.service.extras.cached.varies  # one replica finds as much in cache as one of many
    count = 1 if best.pool.count > MOST_TOGETHER and alike else best.pool.count
    share = count / best.pool.count
    replicas = {"--replicas": str(count)} if count > 1 else {}
    if question.target.concurrency is not None:
        # No replica may stay idle.
        return {**replicas, "--concurrency": str(max(count, math.ceil(question.target.concurrency * share)))}
    if question.target.offline and question.target.amount is None:
        return {**replicas, "--concurrency": str(count * best.pool.timed.slots)}
    if documents is not None:
        return {**replicas, **_at_once(documents * share), **(EVENLY if count > 1 else {})}
    return {**replicas, "--rps": f"{best.requests_per_s * share:.6g}"}


def _at_once(documents: float) -> dict[str, str]:
    """The options of a batch, of a long one as many documents as show its rate."""
    return {"--arrivals": "at-once", "--requests": f"{min(math.ceil(documents - ROUNDING_SLACK), MOST_AT_ONCE)}"}


def _limits(question: Question) -> Iterator[tuple[str, str]]:
    for name, limit in question.target.limits.stated.items():
        if name != "itl" or question.service.osl > 1:
            statistic = "" if limit.statistic == "mean" else f"{limit.statistic}:"
            yield f"--{name}", f"{statistic}{limit.seconds / MILLI:.6g}ms"
