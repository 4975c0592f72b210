"""The text that starts an answer: a command, a manifest, or the benchmark that confirms it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.profiles import GPUS
from sizing.catalog.shelf import only
from sizing.formats.words import money, number
from sizing.launch import benchmark, command, written
from sizing.launch.answered import Checkpoints, Started, started
from sizing.question.question import Question
from sizing.specs.errors import InputError, unknown
from sizing.specs.launch import LaunchFacts

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}  # targets that are an engine's own command
WRITERS: dict[str, Callable[[Sequence[Started]], str]] = {
    **dict.fromkeys(ENGINES, command.script),
    **{target: partial(written.manifest, target=target) for target in ("kubernetes", "kserve", "compose")},
}
WITHIN_A_NODE = ("kserve", "compose")
NO_ROUTER = (
    "# A router sends each request to a prefill instance and then, with its cache, to a decode instance: "
    "llm-d, Dynamo or the engine's own."
)
BALANCED = "# Something must spread the requests over the replicas as they come."
BY_SERVICE = f"{BALANCED}\n# The Service spreads connections only; put a gateway or router in front of it."
BY_ROUTER = f"{BALANCED}\n# Put a router in front of them: vLLM's, SGLang's, or any load balancer."
AFFINE = "# The estimate counts on a router that sends prompts of one beginning to one replica."
OF_SERVERS = (
    "# The services are those of several servers: each starts its own, as by `docker compose --profile server-1 up -d`."
)
OF_PODS = (
    "# Pods reach it by hostNetwork, or by devices that a plugin of your cluster gives them: neither is stated here."
)
NOTHING = Checkpoints()


class Written(NamedTuple):
    """The text that starts an answer on a target, and the deployment that it describes."""

    target: str
    text: str
    engine: str
    engine_version: str
    model: str
    gpu: str
    gpus: int
    replicas: int
    benchmark: str | None = None
    schema: str = "llmsize.deploy/1"


def check_target(target: str) -> None:
    """Raise InputError for an unknown target."""
    if target not in WRITERS:
        raise InputError(unknown(target, "target", WRITERS, field="--for"))


def check_tool(tool: str | None) -> None:
    """Raise InputError for an unknown benchmark tool."""
    known = list(only(LaunchFacts).benchmarks)
    if tool is not None and tool not in known:
        raise InputError(unknown(tool, "benchmark tool", known, field="--benchmark"))


def deploy(
    outcome: Outcome, target: str = "kubernetes", *, checkpoints: Checkpoints = NOTHING, tool: str | None = None
) -> Written:
    """Write what starts the answer of an estimate: a command or manifests for a `target`, and the benchmark of a `tool`.

    Separate pools are started if they were asked for. Raises InputError without an answer, for an unknown target, for an engine
    other than the target's, and for a setting without a flag in the engine version.

    >>> from sizing import ask, estimate
    >>> written = deploy(estimate(ask("chat", gpu="h100-sxm"), simulated=False), "vllm")
    >>> written.replicas, "--tensor-parallel-size 2" in written.text
    (4, True)
    """
    check_target(target)
    check_tool(tool)
    answer, question = chosen(outcome)
    engine = question.service.engine
    if ENGINES.get(target, engine.name) != engine.name:
        what = f"{engine.title} is the engine of the question"
        raise InputError(what, field=f"--for {target}", allowed=f"--engine {ENGINES[target]}")
    parts = started(answer, question, checkpoints)
    first, widest = parts[0], max(parts, key=lambda part: part.nodes)
    if widest.nodes > 1 and (target in WITHIN_A_NODE or (widest.launcher and target not in ENGINES)):
        what = f"a replica of {widest.gpus} GPUs takes {widest.nodes} nodes, which a {target} file does not state"
        own = next(name for name, runs in ENGINES.items() if runs == engine.name)
        raise InputError(what, field=f"--for {target}", allowed=own if widest.launcher else f"kubernetes or {own}")
    if target == "compose" and any(part.card != part.profile for part in parts):
        what = "Docker knows a slice by an identifier of its own, which each server gives it"
        raise InputError(what, field=f"--for {target}", allowed="kubernetes")
    services = written.placed(parts) if target == "compose" else []
    if len(services) > (most := only(LaunchFacts).script_limits.commands):
        each = f"a compose file has a service for each of the {len(services):,} replicas"
        what, allowed = f"{each}, more than `llmsize check` reads", f"at most {most:,} replicas"
        raise InputError(what, field=f"--for {target}", allowed=f"kubernetes; or {allowed}")
    head = [f"# {line}" for line in _head(answer, question, parts)]
    head += (
        *_routed(answer, question, target),
        *_joined(widest, target),
        *_adapted(first, question),
        *_calibrated(parts),
    )
    if any(service.profile for service in services):
        head.append(OF_SERVERS)
    return Written(
        target,
        "\n".join((*head, WRITERS[target](parts))),
        engine.name,
        question.service.engine_version,
        first.launched.model,
        first.gpu_type.id,
        answer.gpus,
        sum(pool.count for pool in answer.pools),
        None if tool is None else benchmark.command(tool, answer, question, first),
    )


def _routed(answer: Answer, question: Question, target: str) -> Iterator[str]:
    """Yield notes on the router in front of several instances, which no target writes."""
    prefix = question.service.optimisations.prefix
    if answer.separate:
        yield NO_ROUTER
    elif answer.pool.count > 1:
        yield BY_SERVICE if target in ("kubernetes", "kserve") else BY_ROUTER
    if prefix is not None and prefix.routing == "affinity" and not answer.separate and answer.pool.count > 1:
        yield AFFINE


def _adapted(part: Started, question: Question) -> Iterator[str]:
    """Yield notes on the adapters: their rank in the engine, and their names and folders, which no question states."""
    asked, held = question.origin.workload.optimisations.lora, part.launched.lora
    if held is not None and asked is not None and held.rank != asked.rank:
        yield f"# Adapters of rank {asked.rank} take slots of rank {held.rank}, the next one that {part.dialect.title} has."
    if held is not None:
        yield f"# Name the adapters: {part.dialect.engine.loads or 'lora_dir of lora_config'}"


def _calibrated(parts: Sequence[Started]) -> Iterator[str]:
    """Yield a note for each GPU profile that is the user's own, which only its path names."""
    for own in dict.fromkeys(part.gpu_type.id for part in parts if part.gpu_type.id not in (*GPUS.ids, part.profile)):
        yield f"# The estimate is that of the profile {own}: `llmsize check` takes it with -g and its path."


def _joined(part: Started, target: str) -> Iterator[str]:
    """Yield notes on the network that the estimate assumes between the nodes of a replica."""
    sheet = part.gpu_type.gpu.datasheet
    rate, link = sheet.node.inter_node_gbit_per_s_per_gpu, sheet.link
    if part.nodes > 1 and link is not None and part.gpus <= sheet.island_gpus:
        yield f"# The estimate counts on nodes of a replica that {link.kind} joins, as in one rack."
    elif part.nodes > 1 and rate is not None:
        yield f"# The estimate counts on a network of {rate:g} Gbit/s a GPU between the nodes of a replica."
    if part.nodes > 1 and target not in ENGINES:
        yield OF_PODS


def chosen(outcome: Outcome) -> tuple[Answer, Question]:
    """The answer to start, with its question. Raises InputError without an answer."""
    if outcome.answer is None:
        raise InputError("there is no answer to start: nothing meets demand and limits", field="deploy")
    return outcome.answer, outcome.question


def _head(answer: Answer, question: Question, parts: Sequence[Started]) -> tuple[str, ...]:
    """The head lines: the deployment, its load, and its cost."""
    service = question.service
    pools = ", ".join(
        f"{part.launched.replicas} x {pool.replica.layout}{f' ({pool.name})' if pool.name else ''}"
        for part, pool in zip(parts, answer.pools, strict=True)
    )
    types = " and ".join(dict.fromkeys(part.gpu_type.gpu.name for part in parts))
    price = "" if answer.usd_per_hour is None else f", {money(answer.usd_per_hour)}/h"
    rate = f"for {number(answer.requests_per_s)} of at most {number(answer.most_requests_per_s)} requests/s"
    return (
        f"{answer.gpus} x {types}: {pools}, {service.engine.title} {service.engine_version}{price}",
        f"{rate} of {service.isl:,} tokens in{f' and {service.output_tokens:,} out' * (service.output_tokens > 0)}",
    )
