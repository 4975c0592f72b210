"""Judges a checked deployment by a policy: its bounds, a confidence, and the replicas that would keep them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from sizing.answers.answer import Answer
from sizing.answers.check import Held, bearing
from sizing.formats.words import of_limit, percent, plural
from sizing.launch.verdict import Checked, CheckFinding, finding
from sizing.question.question import load_data
from sizing.specs.errors import InputError
from sizing.specs.launch import Policy

OF_GPUS = ("max_gpus", "max_usd_per_million_tokens")  # what a policy bounds by the number of GPUs
ALL_OF_SERVER = "its container takes all GPUs of its server, and nothing states how many"


def needs_of(checked: Checked, policy: Policy) -> str:
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


def _bearing(found: Held, needed: Answer, policy: Policy) -> Answer | None:
    """The size of two pools that keeps the policy; None with a confidence, which is not known of them."""
    rate, share = found.question.target.requests_per_s, _asked_share(policy)
    if policy.confidence is not None:
        return None
    return needed if rate is None or rate <= share * needed.most_requests_per_s else bearing(found, share, load_data())


def _fewest(checked: Checked, policy: Policy) -> int | None:
    """The fewest replicas that keep the demand and the policy; None if no number is known to."""
    found = checked.held
    assert found is not None and found.needed is not None
    counts = [found.needed.pool.count]
    if found.utilisation is not None:  # the load of a replica falls as their number grows
        counts.append(math.ceil(found.utilisation * checked.replicas / _asked_share(policy)))
    if found.utilisation is not None and policy.confidence is not None:
        if found.surely is None:
            return None
        counts.append(found.surely.pool.count)
    return max(counts)


def of_policy(checked: Checked, policy: Policy, needs: str) -> Iterator[CheckFinding]:
    """Yield the findings of the policy; `needs` names the replicas that would do. Raises InputError if a quantity that it bounds is unknown."""
    found, part, usd = checked.held, checked.parts[0], checked.usd_per_million_tokens
    assert found is not None
    if policy.max_usd_per_million_tokens is not None and checked.usd_per_hour is None:
        what = "is not known: the GPU has no price"
        raise InputError(what, field="max_usd_per_million_tokens", allowed="with --price")
    if policy.max_usd_per_million_tokens is not None and usd is None:
        words = "is not known: the demand is not served"
        unknown = finding(part, "max_usd_per_million_tokens", False, words, "replicas", level="warning")
        yield unknown._replace(judged=False)
    bounds: tuple[tuple[str, float | None, str, Callable[[float, float], str]], ...] = (
        ("max_gpus", checked.gpus, "{} GPUs, limit {}", lambda value, _: str(value)),
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
        chance = _chance(found)
        share = of_limit(chance, policy.confidence, least=True)
        words = f"{share} of {found.runs} keep the limits, asked {percent(policy.confidence)}"
        words += "" if chance >= policy.confidence else needs.replace(";", ":", 1)
        yield finding(part, "confidence", chance >= policy.confidence, words, "replicas")


def _chance(found: Held) -> float:
    """The share of similar published runs that keep the limits. Raises InputError if no runs are similar."""
    chance = None if found.sure is None else found.sure.chance
    if chance is None:
        why = (found.sure and found.sure.why_not) or "no published runs are like it"
        raise InputError(f"is not known: {why}", field="confidence", allowed="without it")
    return chance
