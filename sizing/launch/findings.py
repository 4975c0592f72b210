"""What a check finds of a deployment: a finding for each rule on its file, the demand, the load and a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from sizing.answers.answer import Answer
from sizing.answers.check import SizeCheck, below_share
from sizing.answers.deployment import warning_of
from sizing.answers.replay import BusiestMinute
from sizing.catalog.models import FoundModel, load_model, parsed
from sizing.catalog.profiles import load_engine, load_gpu
from sizing.catalog.shelf import only
from sizing.formats.words import number, number_down, of_limit, percent, plural
from sizing.formats.words import stated as in_digits
from sizing.launch.deployment import FileDeployment
from sizing.launch.terms import flags_of, layout_of
from sizing.question.ask import as_served, extras_of
from sizing.question.demand import NOT_REPLAYED
from sizing.question.question import Question
from sizing.specs.bands import EVEN, ConfidentSize, of_runs
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.errors import InputError
from sizing.specs.gpu import GpuType
from sizing.specs.launch import Launched, Policy
from sizing.specs.model import Model, NameRules
from sizing.specs.units import MILLI, SECONDS_PER_HOUR
from sizing.specs.workload import GENERATE, LATENCIES, Workload, latency_name

Level = Literal["ok", "warning", "error"]
MILLION = 1e6
POOLING = "pooling"  # a task that generates nothing, whichever it is


class CheckFinding(NamedTuple):
    """The finding for one rule that a deployment must keep: the rule, its level, a message, and its file and line.

    It is `judged` unless what the rule bounds is not known.
    """

    rule: str
    level: Level
    message: str
    file: str
    line: int | None = None
    judged: bool = True


class Checked(NamedTuple):
    """A deployment with its findings; `held` is None if it was not compared with the demand."""

    name: str
    parts: tuple[FileDeployment, ...]
    question: Question | None
    held: SizeCheck | None
    findings: tuple[CheckFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)

    @property
    def replicas(self) -> int:
        """The replicas of all its pools."""
        return sum(part.launched.replicas or 0 for part in self.parts)

    @property
    def gpus(self) -> int:
        """The GPUs that all its replicas take: those that their containers reserve, at least those on which they run."""
        return sum(_gpus_reserved(part.launched) for part in self.parts)

    @property
    def idle_gpus(self) -> int:
        """The GPUs that are reserved beyond those on which replicas run."""
        return self.gpus - sum(_gpus_used(part.launched) for part in self.parts)

    def gpus_of(self, size: Answer) -> int:
        """The GPUs that another number of its replicas takes, reserved ones included."""
        each = {part.launched.role: _taken_by_one(part.launched) for part in self.parts}
        return sum(pool.count * each[pool.phase] for pool in size.pools)

    @property
    def gpus_at_least(self) -> bool:
        """Whether it takes all GPUs of its server, more than it needs: `gpus` are then the fewest, and nothing states the number."""
        return any(part.whole and not fills_server(part) for part in self.parts)

    @property
    def usd_per_hour(self) -> float | None:
        """The cost of its GPUs an hour; None unless every price is known."""
        types = () if self.question is None else tuple(_types(self.question))
        prices = {each.id: each.usd_per_gpu_hour for each in types}
        costs = [(prices.get(_profile(part.launched)), _gpus_reserved(part.launched)) for part in self.parts]
        known = [price * gpus for price, gpus in costs if price is not None]
        return sum(known) if len(known) == len(costs) else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The cost of a million output tokens (prompt tokens for a task without output).

        They are those of the demand, or without one of the most within the limits. None without a price, where neither is known,
        and where the demand is more than it serves.
        """
        found = self.held
        if self.question is None or self.usd_per_hour is None or found is None or (found.utilisation or 0.0) > 1:
            return None
        most, served = found.most_requests_per_s, None if found.answer is None else found.answer.requests_per_s
        asked = self.question.target.requests_per_s if served is None else served
        rate = 0.0 if most is None and served is None else min(each for each in (asked, most) if each is not None)
        service = self.question.service
        tokens = (service.output_tokens or service.isl) * rate * SECONDS_PER_HOUR
        return self.usd_per_hour / tokens * MILLION if tokens else None


def _gpus_used(launched: Launched) -> int:
    return (launched.replicas or 0) * layout_of(launched).gpus


def fills_server(part: FileDeployment) -> bool:
    """Whether its replicas run on all GPUs of a usual server."""
    gpu = part.launched.gpu
    return gpu is not None and _gpus_used(part.launched) == load_gpu(gpu).spec.datasheet.node.gpus


def _profile(launched: Launched) -> str:
    """The id of the profile of its GPUs, which are named by a path if the profile is the user's own."""
    return "" if launched.gpu is None else load_gpu(launched.gpu).id


def _gpus_reserved(launched: Launched) -> int:
    return (launched.replicas or 0) * _taken_by_one(launched)


def _taken_by_one(launched: Launched) -> int:
    """The GPUs that a replica takes: those that its containers reserve, also where it runs on fewer."""
    return max(layout_of(launched).gpus, launched.reserved_gpus or 0)


def _types(question: Question) -> Iterator[GpuType]:
    pools = question.space.pools
    yield from question.space.gpu_types if pools is None else (*pools.prefill.gpu_types, *pools.decode.gpu_types)


def finding(
    part: FileDeployment, rule: str, kept: bool, words: str, *fields: str, level: Literal["warning", "error"] = "error"
) -> CheckFinding:
    """The finding for a rule on a part. Its line is that of the first of `fields` with a line, else of the command."""
    return CheckFinding(rule, "ok" if kept else level, words, part.file, part.line(*fields, "command"))


OF_GPUS = ("max_gpus", "max_usd_per_million_tokens")  # what a policy bounds by the number of GPUs
ALL_OF_SERVER = "its container takes all GPUs of its server, and nothing states how many"


def enough_replicas_words(checked: Checked, policy: Policy) -> str:
    """Write the replicas that keep the demand and all that the policy asks of the load, if a number is known to."""
    found = checked.held
    if found is None or found.needed is None:
        return ""
    needed = found.needed
    if needed.separate:
        pools = _bearing(found, needed, policy)
        if pools is None:
            return ""
        gpus, counts = checked.gpus_of(pools), " and ".join(f"{pool.count} {pool.name}".strip() for pool in pools.pools)
        counts += " replicas"
    else:
        count = _fewest(checked, policy)
        if count is None:
            return ""
        counts, gpus = plural(count, "replica"), count * checked.gpus // checked.replicas
    most = gpus if policy.max_gpus is None else policy.max_gpus
    beyond = f", more than the limit of {most} GPUs" * (gpus > most)
    return f"; {counts} ({gpus} GPUs) of this layout would do{beyond}"


def _asked_share(policy: Policy) -> float:
    """The share of its most that a deployment may serve, by the policy's utilisation and headroom."""
    growth = 1 / (1 + (policy.min_headroom or 0.0))
    return growth if policy.max_utilisation is None else min(growth, policy.max_utilisation)


def _bearing(held: SizeCheck, needed: Answer, policy: Policy) -> Answer | None:
    """The size of two pools that keeps the policy; None with a confidence, which is not known of them."""
    rate, share = held.question.target.requests_per_s, _asked_share(policy)
    if policy.confidence is not None:
        return None
    return needed if rate is None or rate <= share * needed.most_requests_per_s else below_share(held, share)


def _fewest(checked: Checked, policy: Policy) -> int | None:
    """The fewest replicas that keep the demand and the policy; None if no number is known to."""
    found = checked.held
    assert found is not None and found.needed is not None
    counts = [found.needed.pool.count]
    if found.utilisation is not None:  # the load of a replica falls as their number grows
        counts.append(math.ceil(found.utilisation * checked.replicas / _asked_share(policy)))
    if found.utilisation is not None and policy.confidence is not None:
        if found.sure_answer is None:
            return None
        counts.append(found.sure_answer.pool.count)
    return max(counts)


def of_policy(checked: Checked, policy: Policy, needs: str) -> Iterator[CheckFinding]:
    """Yield the findings of the policy; `needs` names the replicas that would do.

    Raises InputError if a quantity that the policy bounds is unknown.
    """
    found, part, usd = checked.held, checked.parts[0], checked.usd_per_million_tokens
    assert found is not None
    if policy.max_usd_per_million_tokens is not None and checked.usd_per_hour is None:
        what = "is not known: the GPU has no price"
        raise InputError(what, field="max_usd_per_million_tokens", remedy="use it with --price")
    if policy.max_usd_per_million_tokens is not None and usd is None:
        words = "is not known: the demand is not served"
        unknown = finding(part, "max_usd_per_million_tokens", False, words, "replicas", level="warning")
        yield unknown._replace(judged=False)
    bounds: tuple[tuple[str, float | None, str, Callable[[float, float], str]], ...] = (
        ("max_gpus", checked.gpus, f"{{}} GPU{'s' * (checked.gpus != 1)}, limit {{}}", lambda value, _: str(value)),
        ("max_usd_per_million_tokens", usd, "${} per million output tokens, limit ${}", lambda value, _: f"{value:,.4g}"),
        ("max_utilisation", found.utilisation, "{} of the most within the limits is used, limit {}", of_limit),
    )  # fmt: skip
    for rule, value, words, written in bounds:
        most = getattr(policy, rule)
        if most is not None and value is not None:
            kept, said = value <= most, words.format(written(value, most), written(most, most))
            if checked.gpus_at_least and rule in OF_GPUS:  # a number that nothing states keeps no bound
                kept, said = False, f"at least {said}: {ALL_OF_SERVER}"
            more = needs * (rule == "max_utilisation" and not kept)  # of the others, more replicas miss more
            yield finding(part, rule, kept, said + more, "replicas")
    if found.utilisation is not None and policy.min_headroom is not None:
        left = 1 / found.utilisation - 1
        grows = of_limit(left, policy.min_headroom, least=True)
        words = f"the demand may grow by {grows}, asked {percent(policy.min_headroom)}"
        words = words if left >= 0 else f"the demand must fall by {of_limit(-left, 0.0)}"
        kept = left >= policy.min_headroom
        yield finding(part, "min_headroom", kept, words + needs * (not kept), "replicas")
    if found.utilisation is not None and policy.confidence is not None:
        chance, runs = _chance(found.odds)
        share = of_limit(chance, policy.confidence, least=True)
        words = f"{share} of {runs} keep the limits, asked {percent(policy.confidence)}"
        words += "" if chance >= policy.confidence else needs.replace(";", ":", 1)
        yield finding(part, "confidence", chance >= policy.confidence, words, "replicas")
    odds = found.odds
    if policy.confidence is None and found.holds and odds and odds.chance is not None and odds.chance < EVEN:
        chance, runs = _chance(odds)
        words = f"{percent(chance)} of {runs} keep the limits: estimate sizes for half of them, as --confidence {EVEN:.0%} asks"
        yield finding(part, "confidence", False, words, "replicas", level="warning")


def _chance(odds: ConfidentSize | None) -> tuple[float, str]:
    """The share of similar published runs that keep the limits, and these runs. Raises InputError if no runs are similar."""
    if odds is None or odds.chance is None:
        why = (odds and odds.why_not) or "no published runs are like it"
        raise InputError(f"is not known: {why}", field="confidence", remedy="leave it out")
    return odds.chance, of_runs(odds.own, any_gpu=odds.any_gpu)


def of_file(part: FileDeployment, demanded: Workload) -> Iterator[CheckFinding]:
    """Yield the findings that need no prediction: the model, lengths, GPUs and nodes, and repeated flags."""
    launched = part.launched
    served, asked = (load_model(name) for name in (launched.model, demanded.model))
    same = served.id == asked.id or served.spec == replace(asked.spec, name=served.spec.name)
    alike, words = not same or _may_be_alike(launched.model, demanded.model), served.spec.name
    if not same:
        takes = f"--set model={launched.model} takes this one"
        words = f"serves {words}, but the demand asks for {asked.spec.name}; {takes}"
    elif not alike:
        words = f"serves {launched.model}, and {demanded.model} is asked for: another checkpoint of the same sizes"
    yield finding(part, "model", same and alike, words, "model", level="error" if not same else "warning")
    yield from _of_task(part, demanded, served)
    if demanded.optimisations.images is not None and not (served.spec.vision or served.spec.vision_parameters):
        words = f"requests have images, and {served.spec.name} has no encoder for them"
        yield finding(part, "images", False, words, "model")
    longest, most = _longest(demanded, served.spec), launched.serving.max_model_len
    if most is not None:
        enough, positions = longest <= most, served.spec.max_position
        says = "hold the longest request" if enough else "are fewer than the longest request has"
        words = f"{most:,} tokens {says}, {longest:,}"
        if most > positions:  # engines refuse to start
            words = f"{most:,} tokens are more than the {positions:,} positions of {served.spec.name}"
        yield finding(part, "max_model_len", enough and most <= positions, words, "max_model_len")
    gpus = layout_of(launched).gpus
    yield from _of_gpus(part, gpus)
    node = load_gpu(launched.gpu).spec.datasheet.node.gpus if launched.gpu else gpus
    if part.nodes is not None and gpus > part.nodes * node:
        held = f"{plural(part.nodes, 'node')} of {node}, as usual servers have"
        words = f"a replica of {gpus} GPUs takes more than {held}"
        yield finding(part, "nodes", False, words, "nodes", "dp_local", "tp", level="warning")
    if part.clash is not None:
        level: Literal["warning", "error"] = "error" if part.cards else "warning"
        yield finding(part, "port", False, part.clash, "port", level=level)
    for stated in part.again:
        words = f"{stated.flag} contradicts what is stated before it: the last, {stated.value}, counts"
        yield CheckFinding("flags", "warning", words, part.file, stated.line)
    for stated, what in part.idle:
        words = f"{stated.flag} has no effect: {served.spec.name} has no {what}"
        yield CheckFinding("flags", "warning", words, part.file, stated.line)


def _longest(demanded: Workload, model: Model) -> int:
    """Tokens of the longest request, with those of its images and of all earlier turns."""
    try:
        return as_served(demanded, extras_of(demanded, model)).longest
    except InputError:  # told where the deployment becomes a question
        return demanded.longest


def _of_task(part: FileDeployment, demanded: Workload, found_model: FoundModel) -> Iterator[CheckFinding]:
    """Yield the finding of a deployment that does another task than the demand's, or of which nothing says that it does it."""
    said, asked, fields = part.launched.task, demanded.task, ("convert", "task", "pooling")
    encoder, engine = found_model.spec.encoder, flags_of(load_engine(part.launched.serving.engine or "vllm")[0].id)
    does = said or (POOLING if encoder else GENERATE)
    vague = does == POOLING and demanded.pooled
    if does == GENERATE and said is None and asked == found_model.task and asked in engine.detects:
        words = f"no flag says that it does: {asked} is taken from files of the checkpoint, if it has them"
        yield finding(part, "task", False, words, *fields, level="warning")
    elif does != asked and not vague and not (asked == "score" and does != GENERATE):  # scores compare what others give
        words = f"is started to {does}" + ", as no flag says otherwise" * (said is None and not encoder)
        if does == POOLING:
            words = "pools the states of a prompt (embed, classify or score)"
        yield finding(part, "task", False, f"{words}, and {asked} is asked for", *fields)
    elif vague and asked == "classify" and not encoder and engine.states("convert"):
        words = f"no flag says that it classifies: a checkpoint that generates embeds without --convert {asked}"
        yield finding(part, "task", False, words, *fields, level="warning")


def _may_be_alike(one: str, other: str) -> bool:
    """Whether two names may mean the same weights, also in other precisions. A name that is no Hub id says too little to differ."""
    rules = only(NameRules)

    def trained(name: str) -> list[str]:
        first, *rest = parsed(name, rules).unquantised.split("-")
        words = rest if first in rules.prefixes and rest else (first, *rest)
        return [word for word in words if word not in rules.file_forms]

    ids = all(name.count("/") == 1 and not name.startswith((".", "/", "~")) for name in (one, other))
    return not ids or trained(one) == trained(other)


def _of_gpus(part: FileDeployment, gpus: int) -> Iterator[CheckFinding]:
    """Yield the findings on the GPUs that a replica's containers reserve, and those that its command sees."""
    reserved, words = part.launched.reserved_gpus, f"a replica runs on {plural(gpus, 'GPU')}"
    if reserved is not None:
        seen = reserved if part.seen is None else min(part.seen, reserved)
        words += f", and its containers reserve {reserved}" * (reserved != gpus)
        words += f", of which its command sees {seen}" * (seen < reserved)
        level: Literal["warning", "error"] = "error" if min(seen, reserved) < gpus else "warning"
        yield finding(part, "gpus", reserved == seen == gpus, words, "gpus", "tp", level=level)
    elif part.whole:
        words += ", and its container takes all of its server"
        yield finding(part, "gpus", fills_server(part), words, "gpus", "tp", level="warning")
    if part.doubt is not None:
        yield finding(part, "gpus", False, f"{words}, and {part.doubt}", "tp", level="warning")


def of_demand(part: FileDeployment, demanded: Workload) -> Iterator[CheckFinding]:
    """Yield findings for features that the demand needs and the engine is started without."""
    has, asked = part.launched.lora, demanded.optimisations
    if asked.lora is not None:
        enough = has is not None and has.slots >= asked.lora.slots and has.rank >= asked.lora.rank
        words = f"{has or 'no'} adapters are held at once, {asked.lora} asked"
        yield finding(part, "lora", enough, words, "lora_slots", "lora_rank")
    if asked.prefix is not None and part.launched.serving.prefix_caching is False:
        words = "prefix caching is off, and the demand counts on what it finds"
        yield finding(part, "prefix_caching", False, words, "prefix_caching", "no_prefix_caching")


REASONS = {"memory": ("memory", "memory_fraction", "max_model_len", "tp"), "capacity": ("demand", "replicas")}


NO_LAYOUT = ("layout", "tp")


BOUNDS = {
    "kv_cache": "the KV cache is full",
    "max_num_seqs": "the engine runs no more sequences at once",
    "link": "the links between the pools are full",
}


def of_load(checked: Checked, needs: str) -> Iterator[CheckFinding]:
    """Yield the findings whether it starts, serves the demand, and keeps each limit; `needs` names the replicas that would do."""
    found, question, part = checked.held, checked.question, checked.parts[0]
    assert found is not None and question is not None
    if found.why is not None:
        rule, *fields = REASONS.get(found.reason or "", NO_LAYOUT)
        yield finding(part, rule, False, found.why, *fields)
        return
    yield finding(part, "layout", True, str(layout_of(part.launched)), "tp")
    yield from _of_memory(checked)
    enough = found.answer is not None and found.reason is None and (found.utilisation is None or found.utilisation <= 1)
    yield finding(part, "demand", enough, _served(checked) + needs * (not enough), "replicas")
    missed = False
    for name, limit in question.target.limits.stated.items():
        latency = None if found.answer is None else found.answer.latency_s(name)
        if latency:
            seconds = latency[limit.statistic]
            kept = seconds <= limit.seconds
            missed = missed or not kept
            words = f"{limit.statistic} {in_digits(seconds / MILLI)} ms, limit {in_digits(limit.seconds / MILLI)} ms"
            yield finding(part, name, kept, words + needs * (not kept), "replicas", "tp")
        elif found.answer is None and found.stable is not None:
            words = f"{limit.statistic} has no figure, as the queue grows without end; limit {in_digits(limit.seconds / MILLI)} ms"
            yield finding(part, name, False, words + needs, "replicas", "tp")
    if enough and not found.holds and not missed:
        yield finding(part, "stable", False, f"a simulation does not confirm it{needs}", "replicas")


def of_trace(checked: Checked, minute: BusiestMinute | None, simulated: bool) -> Iterator[CheckFinding]:
    """Yield whether the busiest minute of a trace was replayed; nothing of another demand."""
    question, part = checked.question, checked.parts[0]
    if minute is not None:
        count, seconds = minute.end - minute.start, number(minute.start_s)
        said = "replayed as they came" if simulated else "not replayed (--no-verify)"
        words = f"the {count:,} requests of its busiest minute, from {seconds} s on, are {said}"
        yield finding(part, "trace", simulated, words, level="warning")
    elif question is not None and question.origin.rate_of_trace:
        yield finding(part, "trace", False, NOT_REPLAYED, level="warning")


def _of_memory(checked: Checked) -> Iterator[CheckFinding]:
    """Yield a warning for each pool whose engine may run out of memory as it starts."""
    found = checked.held
    size = None if found is None else found.answer or found.needed
    by_role = {part.launched.role: part for part in checked.parts}
    for pool in () if size is None else size.pools:
        warning = warning_of(pool.replica.memory)
        if warning is not None:
            part = by_role.get(pool.replica.service.phase, checked.parts[0])
            yield finding(part, "memory", False, warning, "memory_fraction", level="warning")


def _served(checked: Checked) -> str:
    """Write the demand and the most within the limits, in the unit of the demand."""
    found, question = checked.held, checked.question
    assert found is not None and question is not None
    target, most, used = question.target, found.most_requests_per_s, found.utilisation
    if most is None:
        return "the demand is not served"
    if target.amount is None or used is None:
        return f"serves at most {number_down(most)} requests/s within the limits"
    borne = most if target.unit == "requests/s" else target.amount / used
    binds = f", where {_bound(found.binding, question)}" if found.binding else ""
    grows = "" if found.stable is None else f"; above {_down(found.stable, question)}, the queue grows without end"
    extra = question.rules.headroom if found.reason == "capacity" else 0.0
    asked = f"{number(target.amount)} {target.unit}" + f" and {percent(extra)} headroom" * (extra > 0)
    most_words = f"{_down(borne, question)} within the limits{binds}"
    return f"{asked} asked, serves at most {most_words}: {of_limit(used)} used{grows}"


def _down(amount: float, question: Question) -> str:
    """Write an amount of the demand, rounded down; users and requests in flight are whole numbers."""
    slack = amount * (1 + ROUNDING_SLACK)
    return number_down(slack if question.target.unit == "requests/s" else math.floor(slack))


def _bound(binding: str, question: Question) -> str:
    """Write what keeps a deployment from serving more."""
    if binding in LATENCIES:
        return f"{latency_name(binding, single=question.service.single_result)} reaches its limit"
    if binding == "utilisation":
        return f"{percent(question.target.max_utilisation)} of the highest stable rate is used"
    return BOUNDS[binding]
