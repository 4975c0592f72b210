"""Conversations: prompts that grow by their turns, what a turn finds in cache behind a router, and replicas that suffice with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.answers import replica_counts
from sizing.answers.answer import Answer, Pool
from sizing.answers.replica_counts import Reply, Trial
from sizing.answers.search import search, with_count
from sizing.answers.verify import simulated
from sizing.cli.main import run
from sizing.model.extras import Cached
from sizing.model.extras import prefixes as reuse
from sizing.model.extras.prefixes import Conversation, Finding
from sizing.question.ask import question_of
from sizing.question.options import WORKLOAD_OPTIONS, GivenOptions, options_of
from sizing.question.question import Question
from sizing.replica.histories import IDLE_CACHES, idle_conversations
from sizing.specs.units import GIB

TALK = Conversation(turns=8, first=500, shared=0, osl=300)
MODEL = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--tp", "1", "--isl", "500", "--osl", "300")
BYTES_PER_TOKEN = 32 * 2 * 8 * 128 * 2  # layers, key and value, KV heads, head size, 16 bit: 131,072

talks = st.builds(
    lambda turns, shared, adds, osl: Conversation(turns, shared + adds, shared, osl),
    st.integers(1, 12),
    st.integers(0, 3000),
    st.integers(1, 3000),
    st.integers(1, 2000),
)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run([*arguments, "--json"])
    printed = capsys.readouterr()
    assert code in (0, 1), printed.err
    found: dict[str, Any] = json.loads(printed.out)
    return found


def asked(**values: Any) -> Question:
    """What `llmsize estimate` is asked: Llama-3.1-8B, TP1 on H100, a first prompt of 500 tokens, 300 of output."""
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 1, "isl": 500, "osl": 300, **values}
    return question_of(None, options_of(GivenOptions(WORKLOAD_OPTIONS, given)))


def best(asking: Question) -> Pool:
    found = search(asking).best
    assert found is not None
    return found.pool


# --- lengths and what is found of them --------------------------------------------------------------------------------


def test_prompts_grow_by_what_the_user_adds_and_the_answers() -> None:
    """1,000 shared, 200 added a turn, 300 of output: 1,200; + 200 + 300 = 1,700; 2,200; their mean is 1,700."""
    talk = Conversation(turns=3, first=1200, shared=1000, osl=300)
    assert talk.prompts == (1200, 1700, 2200)
    assert talk.mean_isl == 1700
    assert [talk.held(turn) for turn in (0, 1, 2)] == [1000, 1500, 2000]


def test_a_turn_finds_whole_blocks_of_what_came_before_it() -> None:
    """Blocks of 16: of 1,000 shared tokens 62 blocks, 992; of 1,500 93, 1,488; of 2,000 125, all. 4,480 of 5,100."""
    talk = Conversation(turns=3, first=1200, shared=1000, osl=300)
    assert reuse.found_by_turn(talk, Finding(block=16)) == (992, 1488, 2000)
    assert reuse.share(talk, Finding(block=16)) == pytest.approx(4480 / 5100)
    assert reuse.found_by_turn(talk, Finding()) == (1000, 1500, 2000)


def test_over_two_replicas_by_hand() -> None:
    """Turn 2 finds the 800 of turn 1 half the time: 400. Turn 3 finds turn 2's 1,600 half the time, turn 1's 800 in a
    quarter of cases: 800 + 200 = 1,000."""
    assert reuse.found_by_turn(Conversation(3, 500, 0, 300), Finding(engines=2)) == (0, 400, 1000)


def test_what_is_kept_lies_between_the_shared_tokens_and_the_history() -> None:
    talk = Conversation(turns=2, first=1200, shared=1000, osl=300)
    assert reuse.found_by_turn(talk, Finding(kept=0.25)) == (1000, 0.25 * 1500 + 0.75 * 1000)


@pytest.mark.parametrize("engines", [1, 2, 3, 4])
@pytest.mark.parametrize("turns", [1, 2, 3, 5])
def test_expected_reuse_is_that_of_every_way_through_the_router(engines: int, turns: int) -> None:
    """Each of R^T ways is as likely; a turn finds what the last earlier turn on its replica left, all prompts the shared."""
    talk, how = Conversation(turns, 700, 100, 250), Finding(engines=engines, block=16)
    found = np.zeros(turns)
    for way in product(range(engines), repeat=turns):
        for turn in range(1, turns + 1):
            here = [earlier for earlier in range(1, turn) if way[earlier - 1] == way[turn - 1]]
            tokens = talk.prompt(here[-1]) + talk.osl if here else talk.shared
            found[turn - 1] += tokens // 16 * 16
    assert reuse.found_by_turn(talk, how) == pytest.approx(found / engines**turns)


@given(talks, st.integers(1, 40), st.sampled_from([1, 16, 64]))
def test_random_routing_never_finds_more_and_one_replica_as_much(talk: Conversation, engines: int, block: int) -> None:
    with_affinity = reuse.found_by_turn(talk, Finding(1, block))
    at_random = reuse.found_by_turn(talk, Finding(engines, block))
    assert all(less <= more + 1e-9 for less, more in zip(at_random, with_affinity, strict=True))
    fewer = reuse.found_by_turn(talk, Finding(max(1, engines - 1), block))
    assert all(less <= more + 1e-9 for less, more in zip(at_random, fewer, strict=True))
    assert all(found <= prompt for found, prompt in zip(with_affinity, talk.prompts, strict=True))


@given(talks, st.integers(1, 40))
def test_the_hit_grows_with_turns_where_nothing_is_shared(talk: Conversation, engines: int) -> None:
    """Found whole (blocks of a token), turn t has (t-1)*(n+o) of t*n + (t-1)*o: a share that grows, and with it the mean."""
    alone = [Conversation(turns, talk.adds, 0, talk.osl) for turns in (talk.turns, talk.turns + 1)]
    fewer, more = (reuse.share(each, Finding(engines)) for each in alone)
    assert more >= fewer - 1e-12


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("kept", [1.0, 0.4])
def test_what_requests_draw_is_what_is_expected(engines: int, kept: float) -> None:
    talk, how = Conversation(6, 900, 200, 250), Finding(engines, 16, kept)
    expected = reuse.found_by_turn(talk, how)
    for turn, prompt in enumerate(talk.prompts):
        drawn = [reuse.drawn(talk, how, number, prompt) for number in range(5000)]
        assert np.mean(drawn) == pytest.approx(expected[turn], rel=2e-3)


# --- replicas that suffice ------------------------------------------------------------------------------------------------


def tried(cached: Cached, needed: Callable[[int], int | None]) -> tuple[int | None, int]:
    """The replicas that a search comes to, and its trials, where so many are needed with what a number of them finds."""
    trials = replica_counts.fewest(cached)
    trial: Trial = next(trials)
    count = 0
    while True:
        count += 1
        try:
            trial = trials.send(Reply(needed(trial.replicas), memory=True))
        except StopIteration as stop:
            return (None if stop.value is None else stop.value.trial.replicas), count


@given(st.integers(1, 30), st.floats(0.0, 3.0))
def test_at_random_the_fewest_are_those_that_suffice_with_what_they_find(least: int, worse: float) -> None:
    """More replicas find less, so each asks for more: from `least` for one up to 1 + `worse` times that."""

    def needed(replicas: int) -> int:
        return math.ceil(least * (1 + worse * (1 - 1 / replicas)))

    found, _ = tried(Cached(conversation=TALK), needed)
    assert found == next(count for count in range(1, 1000) if needed(count) <= count)


@given(st.integers(1, 500), st.integers(1, 60), st.integers(0, 8))
def test_under_affinity_the_fewest_are_those_whose_part_of_the_prefixes_leaves_room(
    prefixes: int, least: int, too_few: int
) -> None:
    """Each holds ceil(D/R) prefixes and needs more replicas the more it holds; up to `too_few` of them nothing fits."""

    def needed(replicas: int) -> int | None:
        return None if replicas <= too_few else least + math.ceil(prefixes / replicas)

    found, trials = tried(Cached(affinity=True, prefixes=prefixes, shared_tokens=1), needed)
    if prefixes == 1:
        return  # nothing eases with replicas: the first that is turned down is the last
    fits = ((count, needed(count)) for count in range(1, 2000))
    assert found == next(count for count, asks in fits if asks is not None and asks <= count)
    assert trials < 40


def test_a_layout_that_no_number_of_replicas_helps_is_given_up() -> None:
    assert tried(Cached(conversation=TALK), lambda _: None) == (None, 1)


def test_the_answer_is_consistent_with_its_own_number_of_replicas() -> None:
    """As many replicas as the demand takes with what so many find, and no fewer would do with what fewer find."""
    asking = asked(turns=8, rps=40.0)
    found = best(asking)
    cached = found.replica.service.extras.cached
    assert cached.engines == found.count > 1
    assert cached.hit == pytest.approx(reuse.share(TALK, Finding(found.count, 16)))
    assert found.capacity.amount * found.count >= 40
    fewer = with_count(found, found.count - 1, asking)
    assert fewer.replica.service.extras.cached.hit > cached.hit
    assert fewer.capacity.amount * fewer.count < 40


def test_one_replica_finds_as_much_however_it_is_routed() -> None:
    at_random, together = (best(asked(turns=8, rps=5.0, prefix_routing=how)) for how in ("random", "affinity"))
    assert at_random.count == together.count == 1
    assert at_random.capacity.amount == together.capacity.amount
    assert at_random.point.ttft_s["mean"] == together.point.ttft_s["mean"]


def test_random_routing_takes_no_fewer_gpus_than_affinity() -> None:
    sizes = {how: best(asked(turns=8, rps=60.0, prefix_routing=how)).count for how in ("random", "affinity")}
    assert sizes["affinity"] < sizes["random"]


def test_under_affinity_each_replica_holds_its_part_of_the_prefixes() -> None:
    """200 prefixes of 1,600 tokens: 1,600 * 131,072 B each, all of them 39.1 GiB; a part of R replicas is ceil(200/R)."""
    plain = {"isl": 3000, "rps": 60.0, "prefix_hit": "0.6", "prefix_shared": 1600, "prefix_distinct": 200}
    base = best(asked(isl=3000, rps=60.0, prefix_hit="0.6")).replica.memory
    at_random, together = best(asked(**plain)), best(asked(**plain, prefix_routing="affinity"))
    each_gib = 1600 * BYTES_PER_TOKEN / GIB
    assert at_random.replica.memory.shared_prefix_gib == pytest.approx(200 * each_gib)
    assert together.count > 1
    assert together.replica.memory.shared_prefix_gib == pytest.approx(math.ceil(200 / together.count) * each_gib)
    assert together.count <= at_random.count
    for found in (at_random, together):
        assert found.replica.memory.kv_cache_gib == pytest.approx(base.kv_cache_gib)
        assert found.replica.memory.weights_gib == base.weights_gib


def test_prefixes_that_no_single_replica_holds_fit_where_each_has_its_part() -> None:
    """400 prefixes are 78 GiB, more than a card has; under affinity enough replicas hold them between themselves."""
    plain = {"isl": 3000, "rps": 60.0, "prefix_hit": "0.6", "prefix_shared": 1600, "prefix_distinct": 400}
    alone, together = best(asked(**plain)), best(asked(**plain, prefix_routing="affinity"))
    assert alone.replica.service.extras.cached.kept < 1
    found = together.replica.service.extras.cached
    assert (found.kept, found.distinct) == (1, math.ceil(400 / together.count))
    assert together.count <= alone.count


def test_a_prefix_cache_never_takes_more_gpus_and_more_prefixes_never_fewer() -> None:
    """1,000 prefixes of 1,600 tokens are 195 GiB. Those that a card has no room for are computed anew, as without a cache."""
    plain = {"isl": 3000, "rps": 60.0}
    sizes = [
        best(asked(**plain, prefix_hit="0.6", prefix_shared=1600, prefix_distinct=n)).gpus for n in (1, 60, 400, 1000)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] <= best(asked(**plain)).gpus


def test_caches_that_keep_a_part_of_the_prefixes_find_that_part() -> None:
    """Half of the prefixes: 30 of 60 % in the mean; half of the requests find 60 % of 1,000 tokens, the others nothing."""
    asking = asked(isl=3000, rps=60.0, prefix_hit="0.6", prefix_shared=1600, prefix_distinct=400)
    half = asking.service.extras.cached.over(3, 0.5)
    assert (half.hit, half.shared_tokens, half.distinct) == (pytest.approx(0.3), 800, 400)
    assert half.finds is not None
    drawn = [half.finds(request, 1000) for request in range(1000)]
    assert set(drawn) == {0, 600}
    assert sum(drawn) / 1000 == pytest.approx(300, rel=0.01)


# --- idle conversations -----------------------------------------------------------------------------------------------------


def test_idle_conversations_are_turns_in_a_think_time(capsys: pytest.CaptureFixture[str]) -> None:
    """At 6 turns/s a replica of 20 s of thinking 120 wait; a conversation is 3,300 + 300 tokens on average, 225 blocks of 16:
    the pool's 445,000 or so tokens hold about 124 of them, less those that are being served."""
    found = answer(
        capsys, "estimate", *MODEL, "--turns", "8", "--think-time", "20s", "--prefix-routing", "affinity", "--rps", "24",
        "--no-verify",
    )  # fmt: skip
    idle, replicas = found["idle_conversations"], found["deployment"]["replicas"]
    assert idle["needed"] == pytest.approx(24 / replicas * 20)
    tokens = found["memory"]["kv_cache_gib"] * GIB / BYTES_PER_TOKEN
    assert idle["room"] == pytest.approx(tokens / 3600 - found["load"]["concurrency_per_replica"], rel=0.02)
    assert idle["histories_kept"] <= min(1.0, idle["room"] / idle["needed"]) + 1e-3


def test_longer_thinking_never_finds_more() -> None:
    found = [
        best(asked(turns=8, rps=24.0, prefix_routing="affinity", think_time=time))
        for time in ("1ms", "20s", "1min", "5min", "10h")
    ]
    hits = [one.replica.service.extras.cached.hit for one in found]
    assert hits == sorted(hits, reverse=True)
    assert hits[0] == pytest.approx(reuse.share(TALK, Finding(block=16)))
    assert hits[-1] < 0.01
    sizes = [one.count for one in found]
    assert sizes == sorted(sizes)


def test_no_more_is_taken_as_kept_than_the_answer_has_room_for() -> None:
    asking = asked(turns=8, rps=24.0, prefix_routing="affinity", think_time="2min")
    found = best(asking)
    alive = idle_conversations(found.replica, asking.target, found.point, found.count)
    kept = found.replica.service.extras.cached.kept
    assert alive is not None
    assert kept < 1
    assert kept <= alive.kept + replica_counts.KEPT_CLOSE


@pytest.mark.parametrize("routing", ["affinity", "random"])
@pytest.mark.parametrize("unlimited", [False, True])
def test_gpus_have_one_capacity(routing: str, unlimited: bool) -> None:
    """What given GPUs serve is the most that they are asked for, whatever the demand, and the fewest GPUs follow from it."""
    limits = {} if unlimited else {"ttft": "p95:300ms", "itl": "25ms"}
    asking = asked(turns=8, rps=1.0, prefix_routing=routing, think_time="40s", **limits)

    def capacity(gpus: int, rps: float | None) -> tuple[float, int]:
        found = best(asking.with_(requests_per_s=rps, gpu_budget=None if rps else gpus))
        pool = found if found.count == gpus else with_count(found, gpus, asking.with_(requests_per_s=rps))
        return pool.capacity.requests_per_s * gpus, found.count

    given = [capacity(gpus, None)[0] for gpus in (2, 3)]
    assert given == sorted(given)
    most = given[1]
    for share in (0.4, 0.99):
        served, count = capacity(3, most * share)
        assert served == pytest.approx(most, rel=1e-6)
        assert count <= 3
    assert capacity(3, most * 1.01)[1] > 3


def test_a_replica_at_capacity_keeps_what_it_finds() -> None:
    """The histories that a full replica is taken to keep fit beside its live requests, and few more would."""
    asking = asked(turns=8, gpus=2, prefix_routing="affinity", think_time="40s")
    found = best(asking)
    alive = idle_conversations(found.replica, asking.target, found.point, found.count)
    assert alive is not None
    assert found.capacity.binding == IDLE_CACHES
    assert found.replica.service.extras.cached.kept == pytest.approx(alive.kept, rel=0.01)


def test_a_cache_that_is_too_small_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("estimate", *MODEL, "--turns", "8", "--rps", "24", "--prefix-routing", "affinity", "--no-verify")
    assert run([*arguments, "--think-time", "5min"]) == 0
    assert "cannot hold" in " ".join(capsys.readouterr().out.split())
    assert run([*arguments, "--think-time", "1ms"]) == 0
    assert "cannot hold" not in " ".join(capsys.readouterr().out.split())


# --- simulation -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("routing", "ttft"), [("affinity", 0.07), ("random", 0.20)])
def test_closed_form_and_simulator_agree_about_conversations(routing: str, ttft: float) -> None:
    """Where each turn prefills as much (affinity: 500 tokens) as without conversations; at random prompts that miss are long,
    which the closed form's mean knows less well."""
    asking = asked(turns=8, rps=20.0, prefix_routing=routing, max_utilisation="0.5")
    found = best(asking)
    served = simulated(Answer((found,)), asking).run
    assert served is not None
    assert served.latencies_s["itl"]["mean"] == pytest.approx(found.point.itl_s["mean"], rel=0.07)
    assert served.latencies_s["ttft"]["mean"] == pytest.approx(found.point.ttft_s["mean"], rel=ttft)
    assert set(served.requests.isl) == set(TALK.prompts)
    assert np.mean(served.requests.isl) == pytest.approx(TALK.mean_isl, rel=0.05)


def test_the_answer_is_confirmed_by_the_simulation_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "estimate", *MODEL, "--turns", "8", "--rps", "20", "--think-time", "15s")
    command = found["simulate_command"].split()
    assert command[:2] == ["llmsize", "simulate"]
    again = answer(capsys, *command[1:], "--requests", "4000")
    assert again["inputs"]["conversation"]["hit"] == pytest.approx(found["inputs"]["conversation"]["hit"], rel=0.03)
    assert again["ttft_ms"]["mean"] == pytest.approx(found["latency"]["ttft_ms"]["mean"], rel=0.1)
    assert again["itl_ms"]["mean"] == pytest.approx(found["latency"]["itl_ms"]["mean"], rel=0.1)


def test_a_simulation_of_users_by_their_rate_states_their_think_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "estimate", *MODEL, "--turns", "4", "--users", "60", "--no-verify")
    assert "--think-time 30s" in found["simulate_command"]
    assert found["inputs"]["conversation"]["think_time_s"] == 30.0


# --- how it is asked and answered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["estimate", "simulate"])
def test_one_turn_changes_nothing(capsys: pytest.CaptureFixture[str], command: str) -> None:
    arguments = (command, *MODEL, "--rps", "20", *(("--requests", "300") if command == "simulate" else ()))
    base, one = answer(capsys, *arguments), answer(capsys, *arguments, "--turns", "1")
    assert one["inputs"].pop("optimisations") == {"prefix": {"turns": 1}}
    del base["inputs"]["optimisations"]
    assert one.pop("simulate_command", "").replace(" --turns 1", "") == base.pop("simulate_command", "")
    assert one == base


def test_one_turn_of_a_shared_prefix_is_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    """320 of 500 tokens (20 whole blocks) are shared: a hit rate of 64 %."""
    arguments = ("estimate", *MODEL, "--rps", "20", "--prefix-shared", "320", "--prefix-distinct", "3", "--no-verify")
    one, stated = answer(capsys, *arguments, "--turns", "1"), answer(capsys, *arguments, "--prefix-hit", "0.64")
    for part in ("deployment", "load", "latency", "memory", "throughput"):
        assert one[part] == stated[part], part


def test_inputs_say_how_prompts_grow(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of 500 to 6,100, 26,400 tokens in all; (0 + 800 + ... + 5,600) = 22,400 of them in cache."""
    found = answer(
        capsys, "estimate", *MODEL, "--turns", "8", "--rps", "20", "--prefix-routing", "affinity", "--no-verify"
    )
    inputs = found["inputs"]
    assert (inputs["isl"], inputs["isl_max"], inputs["max_model_len"]) == (3300, 6100, 6400)
    talk = inputs["conversation"]
    assert talk["isl_by_turn"] == [500, 1300, 2100, 2900, 3700, 4500, 5300, 6100]
    assert talk["cached_tokens_by_turn"] == [0, 800, 1600, 2400, 3200, 4000, 4800, 5600]
    assert talk["hit"] == pytest.approx(22_400 / 26_400)
    assert found["idle_conversations"] is None


def test_a_file_says_the_same_as_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "talk.yaml"
    file.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 500, osl: 300}\ndemand: {requests_per_s: 20.0}\nserving: {tp: 1}\n"
        "optimisations: {prefix: {turns: 4, shared_tokens: 160, think_time_s: 30, routing: affinity}}\n"
    )
    of_file = answer(capsys, "estimate", str(file), "-g", "h100-sxm", "--no-verify")
    options = answer(
        capsys, "estimate", *MODEL, "--rps", "20", "--turns", "4", "--prefix-shared", "160", "--think-time", "30s",
        "--prefix-routing", "affinity", "--no-verify",
    )  # fmt: skip
    assert of_file["inputs"]["conversation"] == options["inputs"]["conversation"]
    assert of_file["latency"] == options["latency"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("estimate", *MODEL, "--rps", "5", "--turns", "8", "--prefix-hit", "0.5"), "state one of them"),
        (("estimate", *MODEL, "--rps", "5", "--think-time", "9s"), "turns (--turns); neither is stated"),
        (("estimate", *MODEL, "--rps", "5", "--prefix-hit", "0.5", "--prefix-routing", "random"), "acts on turns"),
        (("estimate", *MODEL, "--rps", "5", "--turns", "2", "--prefix-shared", "500"), "at most 499"),
        (("estimate", *MODEL, "--rps", "5", "--turns", "8", "--isl-max", "6099"), "at least 6,100"),
        (("estimate", *MODEL, "--rps", "5", "--turns", "0"), "above 0"),
        (("estimate", *MODEL, "--rps", "5", "--turns", "2", "--think-time", "0s"), "out of range"),
        (("estimate", *MODEL, "--rps", "5", "--turns", "2", "--disaggregate"), "--prefix-routing affinity"),
        (("memory", *MODEL[:4], "--turns", "8"), "nothing to act on"),
        (("step", *MODEL[:4], "--decode", "8", "--context", "100", "--turns", "8"), "not the step"),
        (("simulate", *MODEL, "--rps", "5", "--turns", "8", "--length-ratio", "0.5"), "--length-ratio"),
        (("simulate", *MODEL, "--requests", "9", "--turns", "8", "--think-time", "9s"), "needs a load"),
        (("curve", *MODEL, "--turns", "8", "--think-time", "9s"), "allowed: estimate, simulate"),
        (("curve", *MODEL, "--turns", "8", "--users", "90"), "--users: think between turns"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run([*arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("whatif", *MODEL, "--rps", "20", "--turns", "4", "--no-verify"),
        ("compare", *MODEL[:4], "--isl", "500", "--osl", "300", "--rps", "20", "--turns", "4"),
        ("plan", *MODEL, "--rps", "40", "--turns", "4", "--spare", "1"),
        ("cost", *MODEL, "--rps", "20", "--turns", "4"),
        ("curve", *MODEL, "--turns", "4", "--no-verify"),
        ("estimate", *MODEL, "--gpus", "4", "--turns", "4", "--think-time", "1min"),
        ("estimate", *MODEL, "--concurrency", "200", "--turns", "4", "--think-time", "1min"),
        (
            "estimate",
            *MODEL,
            "--rps",
            "20",
            "--turns",
            "4",
            "--disaggregate",
            "--prefix-routing",
            "affinity",
            "--no-verify",
        ),
    ],
)
def test_every_command_takes_them(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert answer(capsys, *arguments)


def test_a_sweep_sizes_as_an_estimate_does(capsys: pytest.CaptureFixture[str]) -> None:
    """What a sweep keeps from one row to the next is not what depends on the number of replicas."""
    arguments = (*MODEL, "--turns", "8", "--prefix-shared", "160", "--prefix-distinct", "50")
    rows = answer(
        capsys, "sweep", *arguments, "--vary", "rps=10,40", "--vary", "prefix_routing=random,affinity", "--jobs", "1"
    )
    assert len(rows["rows"]) == 4
    for row in rows["rows"]:
        asked_for = ("--rps", str(row["rps"]), "--prefix-routing", row["prefix_routing"])
        alone = answer(capsys, "estimate", *arguments, *asked_for, "--no-verify")
        assert row["gpus"] == alone["deployment"]["gpus"]
        assert row["ttft_ms"] == pytest.approx(alone["latency"]["ttft_ms"]["mean"])


def test_a_share_that_falls_slowly_settles() -> None:
    """Caches asked to keep k of the histories keep 0.06 + 0.8 k: a fifth of the way to 0.3 each time, where it settles."""
    tried: list[float] = []

    def reply(trial: Trial) -> tuple[float, Reply]:
        tried.append(trial.kept)
        return trial.kept, Reply(3, 0.06 + 0.8 * trial.kept)

    assert replica_counts.settled(3, Cached(think_time_s=35.0), reply, lambda found, *_: found) == pytest.approx(
        0.3, abs=0.005
    )
    assert len(tried) < 8
