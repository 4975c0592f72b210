"""The text that starts an answer: a command, a manifest, or the benchmark that confirms it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.profiles import GPUS
from sizing.catalog.shelf import only
from sizing.formats.words import money, number
from sizing.launch.answer import Checkpoints, Started, started
from sizing.launch.manifests import DRAFTS_LABEL, GPU_LABEL
from sizing.launch.script_text import ABOUT
from sizing.launch.terms import PLACES
from sizing.question.demand import NOT_REPLAYED
from sizing.question.question import Question
from sizing.specs.errors import InputError, unknown
from sizing.specs.launch import BenchmarkTool, LaunchFacts
from sizing.specs.units import MILLI

# Targets that are an engine's own command.
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm"}
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


class StartFiles(NamedTuple):
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
    outcome: Outcome,
    target: str = "kubernetes",
    *,
    checkpoints: Checkpoints = NOTHING,
    tool: str | None = None,
    unplayed: bool = False,
) -> StartFiles:
    """Write what starts the answer of an estimate: a command or manifests for a `target`, and the benchmark of a `tool`.

    Separate pools are started if they were asked for. `unplayed` says that the demand is of a trace that was not replayed. Raises InputError without an answer, for an unknown target, for an engine
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
        raise InputError(what, field=f"--for {target}", remedy=f"use --engine {ENGINES[target]}")
    parts = started(answer, question, checkpoints)
    first, widest = parts[0], max(parts, key=lambda part: part.nodes)
    if widest.nodes > 1 and (target in WITHIN_A_NODE or (widest.launcher and target not in ENGINES)):
        what = f"a replica of {widest.gpus} GPUs takes {widest.nodes} nodes, which a {target} file does not state"
        own = next(name for name, runs in ENGINES.items() if runs == engine.name)
        raise InputError(what, field=f"--for {target}", allowed=own if widest.launcher else f"kubernetes or {own}")
    if target == "compose" and any(part.card != part.profile for part in parts):
        what = "Docker knows a slice by an identifier of its own, which each server gives it"
        raise InputError(what, field=f"--for {target}", allowed="kubernetes")
    services = placed(parts) if target == "compose" else []
    if len(services) > (most := only(LaunchFacts).script_limits.commands):
        each = f"a compose file has a service for each of the {len(services):,} replicas"
        what, allowed = f"{each}, more than `llmsize check` reads", f"at most {most:,} replicas"
        raise InputError(what, field=f"--for {target}", allowed=f"kubernetes; or {allowed}")
    head = [f"# {line}" for line in _head(answer, question, parts)]
    if unplayed or question.origin.rate_of_trace:
        head.append(f"# Sized for random arrivals: {NOT_REPLAYED}.")
    head += (
        *_routed(answer, question, target),
        *_joined(widest, target),
        *_adapted(first, question),
        *_calibrated(parts),
    )
    if any(service.profile for service in services):
        head.append(OF_SERVERS)
    return StartFiles(
        target,
        "\n".join((*head, WRITERS[target](parts))),
        engine.name,
        question.service.engine_version,
        first.launched.model,
        first.gpu_type.id,
        answer.gpus,
        sum(pool.count for pool in answer.pools),
        None if tool is None else benchmark(tool, answer, question, first),
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


URL = "http://localhost:8000"  # placeholder for the router or the replica of the user


class LoadPoint(NamedTuple):
    """A load to drive: mean lengths, and a rate of random arrivals or requests in flight."""

    isl: int
    osl: int
    requests: int
    seconds: float
    rate: float | None
    in_flight: int | None


def point_of(answer: Answer, question: Question) -> LoadPoint:
    """The load of an answer over all its replicas, long enough for percentiles."""
    facts, service, target = only(LaunchFacts), question.service, question.target
    rate, in_flight = answer.requests_per_s, target.concurrency
    if in_flight is None and target.offline and target.amount is None:
        in_flight = sum(pool.count * pool.timed.slots for pool in answer.pools)
    requests = max(facts.least_requests, round(rate * facts.benchmark_s))
    at_rate = None if in_flight else rate
    return LoadPoint(service.isl, service.output_tokens, requests, requests / rate, at_rate, in_flight)


def benchmark(tool: str, answer: Answer, question: Question, part: Started) -> str:
    """The command that runs the benchmark tool, and the command that imports its results."""
    known = only(LaunchFacts).benchmarks[tool]
    if question.service.model.pooled:
        raise InputError("drives what generates tokens", field="--benchmark", remedy="use --task generate")
    point, most = point_of(answer, question), part.launched.serving.max_model_len
    says = [f"# {tool} {known.version}, sent to the router over all replicas"]
    whole = point.isl + point.osl + known.added_tokens
    if most is not None and whole > most:  # the engine would refuse every request
        more = "# Prompts get a few more tokens on their way"
        says.append(f"{more}: start the engine for {whole:,} tokens, not {most:,}")
    words = _words(known, point, question, part)
    return "\n".join((*says, folded(words), folded(_import(known, answer, question, part))))


def _words(tool: BenchmarkTool, point: LoadPoint, question: Question, part: Started) -> tuple[str, ...]:
    """The words of the tool's command, filled with the load, the lengths and the limits."""
    limits = question.target.limits
    named = {"ttft": limits.ttft, "tpot": limits.itl, "e2el": limits.e2e}
    goals = " ".join(f"{name}:{limit.seconds / MILLI:g}" for name, limit in named.items() if limit is not None)
    text = tool.command.replace("{load}", tool.closed_load if point.rate is None else tool.open_load)
    text = text.replace("{goals}", f"{tool.goals} {goals}" if goals else "")
    figures = {
        **point._asdict(), "rate": f"{point.rate or 0:.4g}", "seconds": f"{point.seconds:.0f}", "model": part.launched.model,
        "url": URL, "result": tool.result,
    }  # fmt: skip
    return tuple(word.format(**figures) for word in text.split())


def _import(tool: BenchmarkTool, answer: Answer, question: Question, part: Started) -> tuple[str, ...]:
    """The command that imports the results, with options for settings that they do not record."""
    replica, service = answer.decode.replica, question.service
    engine = f"{service.engine.name}:{service.engine_version}"
    sizes = {name: size for name in ("tp", "pp", "ep", "dp") if (size := getattr(replica.layout, name)) > 1}
    stated = {
        "model": part.launched.model, "gpu": part.gpu_type.id, "gpus": answer.gpus, "engine": engine,
        "precision": replica.plan.weight_format, **sizes, "out": "measured.csv",
    }  # fmt: skip
    return (
        "llmsize",
        "import",
        tool.result,
        *(word for name, value in stated.items() for word in (f"--{name}", str(value))),
    )


FOLD = " \\\n    "


def script(parts: Sequence[Started]) -> str:
    """The commands of all parts, each after its settings file and its variables."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def _lines(part: Started) -> Iterator[str]:
    launched, engine = part.launched, part.dialect.engine
    role = "" if launched.role == "whole" else f" of the {launched.role} pool"
    where = f"{part.node_gpus} x {part.gpu_type.gpu.name}"
    where = where if part.nodes == 1 else f"{part.nodes} nodes with {where}"
    count, on = ("One replica", "") if launched.replicas == 1 else (f"{launched.replicas} replicas", " each group of")
    yield f"# {count}{role}: start this on{on} {where} ({part.dialect.title} {part.dialect.version})."
    if part.launcher:
        yield "# Run it in a folder that all nodes share."
    said = {
        "name": part.name,
        "gpu": part.profile,
        "replicas": launched.replicas,
        "engine": f"{engine.name}:{part.dialect.version}",
        **part.holds,
        **({} if part.drafts is None else {"speculative": part.drafts}),
    }
    if part.args.file is not None and engine.file is not None:
        yield f"cat > {_own(part, engine.file.name)} <<'YAML'\n{part.args.file}YAML"
    if part.nodes > 1 and not part.launcher:
        yield 'HEAD="${HEAD:?the address of the first node}" # of each group'
    if engine.side_channel is not None and launched.role != "whole":
        yield f'export {engine.side_channel.host}="$(hostname -i)" # at which instances of the other pool reach this one'
    *before, serves = _folded(part, first=True)
    yield from (*before, f"# {' '.join(f'{ABOUT}{name}={value}' for name, value in said.items())}", serves)
    if part.nodes > 1 and not part.launcher:
        yield "# On each of the other nodes:"
        if part.further is not None:
            yield f"RANK=1 # of the node: 1 to {part.nodes - 1}"
        yield from _folded(part, first=False)


def _folded(part: Started, *, first: bool) -> list[str]:
    return [folded([_own(part, word) for word in words], part.args.env) for words in part.commands(first=first)]


def _own(part: Started, word: str) -> str:
    """The word; the settings file of each of two pools has a name of its own, as both may be written in one folder."""
    file, role = part.dialect.engine.file, part.launched.role
    return f"{role}-{word}" if file is not None and word == file.name and role != "whole" else word


def folded(words: Sequence[str], env: Sequence[tuple[str, str]] = ()) -> str:
    """A command after its variables, with one flag and its values on each line."""
    lines = [[f"{name}={shlex.quote(value)}" for name, value in env]]
    for word in words:
        if word.startswith("--") or not lines[-1]:
            lines.append([])
        lines[-1].append(quoted(word))
    return FOLD.join(" ".join(line) for line in lines if line)


def quoted(word: str, head: str = "HEAD", rank: str = "RANK") -> str:
    """A word quoted for a shell; the placeholders of nodes become shell variables named `head` and `rank`."""

    def variable(match: re.Match[str]) -> str:
        return f"$(({rank} * {match[2]}))" if match[2] else f"${head if match[1] == 'head' else rank}"

    return f'"{PLACES.sub(variable, word)}"' if PLACES.search(word) else shlex.quote(word)


TEMPLATES = Path(__file__).parent / "templates"
SETTINGS = "/etc/llmsize"
PLACE_OF = {
    "head": "LWS_LEADER_ADDRESS",
    "rank": "LWS_WORKER_INDEX",
}  # a LeaderWorkerSet sets these in each of its pods


class ComposeService(NamedTuple):
    """A replica in a Compose file: its name, the numbers of its GPUs, and the profile of its server (if there are several)."""

    part: Started
    name: str
    devices: tuple[str, ...]
    profile: str | None


def placed(parts: Sequence[Started]) -> list[ComposeService]:
    """The replicas of all parts, each with its own GPUs by number.

    Docker would give the same first GPUs to every container that requests only a count.
    """
    found: list[tuple[Started, str, int, int]] = []
    server, at = 1, 0
    for part in parts:
        for at_ in range(1, (part.launched.replicas or 1) + 1):
            before = found[-1][0].gpu_type.id if found else part.gpu_type.id
            if at + part.gpus > part.gpu_type.gpu.datasheet.node.gpus or before != part.gpu_type.id:
                server, at = server + 1, 0
            found.append((part, part.name if part.launched.replicas == 1 else f"{part.name}-{at_}", server, at))
            at += part.gpus
    return [
        ComposeService(part, name, tuple(map(str, range(at, at + part.gpus))), None if server == 1 else f"server-{on}")
        for part, name, on, at in found
    ]


def manifest(parts: Sequence[Started], target: str) -> str:
    """The documents of all parts as one file, with keys in the order of the template and without folded lines."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # loaded only to write a manifest

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # the output is YAML, with texts quoted as JSON
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "facts": only(LaunchFacts), "command_of": command_of, "placed": placed, "compose_command": compose_command, "facts_of": facts_of, "settings_folder": SETTINGS,
    }  # fmt: skip
    text = environment.get_template(f"{target}.yaml.j2").render(parts=parts)
    found = (each for each in yaml.safe_load_all(text) if each is not None)
    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=10_000) for each in found).rstrip("\n")


def facts_of(part: Started, *, always: bool = False) -> dict[str, str]:
    """The labels of a deployment, for what no other field says: GPU type, model of a checkpoint with another name, drafts.

    The GPU type has a label `always`, or where no label of nodes is known for its card.
    """
    gpu = {GPU_LABEL: part.profile} if always or part.card not in only(LaunchFacts).node_labels else {}
    holds = {f"{ABOUT}{name}": value for name, value in part.holds.items()}
    return {**gpu, **holds, **({} if part.drafts is None else {DRAFTS_LABEL: part.drafts})}


def command_of(part: Started, first: bool) -> tuple[list[str], list[str]]:
    """The command of a container and its arguments. Several commands, or one that computes with its rank, run in a shell."""
    *before, last = part.commands(first=first)
    if before or any((place := PLACES.search(word)) and place[2] for word in last):
        lines = (" ".join(quoted(word, *PLACE_OF.values()) for word in words) for words in (*before, ("exec", *last)))
        return ["/bin/sh", "-c"], [" && ".join(lines)]
    file = part.dialect.engine.file
    words = [PLACES.sub(lambda found: f"$({PLACE_OF[found[1]]})", word) for word in last]
    words = [f"{SETTINGS}/{word}" if file is not None and word == file.name else word for word in words]
    begun = len(part.command)
    return words[:begun], words[begun:]


def compose_command(part: Started) -> tuple[list[str], list[str]]:
    """The command and arguments of a Compose service. They run in a shell if the container must state its own address."""
    command, arguments = command_of(part, first=True)
    channel = part.dialect.engine.side_channel
    if part.launched.role == "whole" or channel is None:
        return command, arguments
    return ["/bin/sh", "-c"], [f'{channel.host}="$$(hostname -i)" exec {shlex.join((*command, *arguments))}']


WRITERS: dict[str, Callable[[Sequence[Started]], str]] = {
    **dict.fromkeys(ENGINES, script),
    **{target: partial(manifest, target=target) for target in ("kubernetes", "kserve", "compose")},
}
