"""Attention data parallelism: ranks of a replica that step together, each prompt on one of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import ask, kernels_for, option, real_gpu, real_model
from engine_builders import run_open, store
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.cli.main import run
from sizing.engine import deployment
from sizing.engine.batch import DecodeBatch, Piece
from sizing.engine.deployment import step_clock, windows_of
from sizing.engine.requests import Requests, arrival_times
from sizing.engine.scheduler import Scheduler
from sizing.model import operations
from sizing.model.architecture import Layout
from sizing.replica import batching
from sizing.replica import curves as curves_of
from sizing.replica import replica as candidates
from sizing.replica import step as exact
from sizing.replica.step import gpu_seconds, of_rank
from sizing.replica.timing import Timed, timed
from sizing.specs.engine_time import FrontEnd

OSS = real_model("gpt-oss-120b")
H100 = real_gpu("h100-sxm")
BACKENDS = ("allgather", "low_latency")
TABLE_TOLERANCE = 2e-3
# Share of the highest stable rate -> how far the closed form may part from the simulator, as for one rank. Kernels of experts read
# most weights for few tokens, so a step with two prompts takes less than two steps, which the closed form overstates.
PARTS = {0.2: (0.03, 0.03), 0.4: (0.05, 0.05), 0.6: (0.085, 0.085), 0.75: (0.13, 0.1)}


def step_of(layout: Layout, **batch: float) -> exact.Step:
    return exact.step(kernels_for(OSS, H100, layout), exact.Batch(**batch))


def prompts(layout: Layout, count: float, tokens: float) -> float:
    whole = {"prefill_sequences": count, "prefill_tokens": tokens, "finishing": count}
    return step_of(layout, **whole).total_s


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_ranks_of_a_dense_model_are_refused_as_they_are_replicas(engine: str) -> None:
    request = ask(real_model("llama-3.1-8b"), engine=engine, serving={"tp": 1, "dp": 4})
    (found,) = candidates.candidates(request.service, option("h100-sxm"), None)
    assert isinstance(found, candidates.Refusal) and found.detail.startswith(
        "DP4 of a dense model is 4 separate replicas"
    )


def candidate_of(
    engine: str, isl: int, osl: int, backend: str = "allgather", dp: int = 4
) -> tuple[candidates.Replica, Timed]:
    request = ask(
        OSS, engine=engine, isl=isl, osl=osl, serving={"tp": 1, "dp": dp, "ep": dp, "all2all_backend": backend}
    )
    found = candidates.candidates(request.service, option("h100-sxm"), None)
    candidate = next(one for one in found if isinstance(one, candidates.Replica))
    return candidate, timed(candidate)


def replica_of(candidate: candidates.Replica, load: Timed, requests: Requests, longest: int) -> Scheduler:
    (replica,) = deployment.schedulers(deployment.deployment_of(load), requests, longest=longest)
    return replica


# --- one step -----------------------------------------------------------------------------------------------------


def test_the_fullest_rank_has_the_mean_or_one() -> None:
    """Of 4 ranks: 1 and 4 sequences are one on the fullest, 6 are 1.5; one rank has them all; half a sequence is half of one."""
    assert [float(of_rank(n, 4)) for n in (1.0, 4.0, 6.0, 0.5, 0.0)] == [1.0, 1.0, 1.5, 0.5, 0.0]
    assert [float(of_rank(n, 1)) for n in (0.5, 7.0)] == [0.5, 7.0]


def test_one_prompt_and_two_worked_by_hand() -> None:
    """Of DP4 one prompt's step is that of four at once but for what the ranks share: with allgather the experts' products and
    both collectives, of 1,000 tokens in place of 4,000; for two prompts, of 2,000.
    """
    layout = Layout(dp=4, ep=4)
    kernels = kernels_for(OSS, H100, layout)
    alone, full = (step_of(layout, prefill_sequences=n, prefill_tokens=1000.0, finishing=n) for n in (1.0, 4.0))
    shared = {"experts", "experts_all_gather", "experts_reduce_scatter"}

    def together_s(tokens: float) -> float:
        found = operations.body(kernels.shard, tokens)
        return float(gpu_seconds(tuple(o for o in found if o.name in shared), kernels))

    own_s = full.gpu_s - together_s(4000.0)
    assert own_s == pytest.approx(sum(o.seconds for o in alone.operations if o.operation.name not in shared))
    assert alone.gpu_s == pytest.approx(own_s + together_s(1000.0))
    two = step_of(layout, prefill_sequences=2.0, prefill_tokens=1000.0, finishing=2.0)
    assert two.gpu_s == pytest.approx(own_s + together_s(2000.0))
    # The products of a rank are those of its own 1,000 tokens: 2 x 1,000 x 2,880 x 4,096 FLOPs a layer for the output.
    output = next(o.operation for o in alone.operations if o.operation.name == "o_proj")
    assert output.flops == pytest.approx(2 * 1000 * 2880 * 4096)


def seconds_over_ranks(tokens: int, dp: int, backend: str) -> tuple[float, float]:
    """The body of a step with a prompt on one rank, and with its tokens spread evenly over all."""
    layout = Layout(dp=dp, ep=dp)
    kernels = kernels_for(OSS, H100, layout)
    changed = kernels.settings.model_copy(update={"all2all_backend": backend})
    kernels = replace(kernels, shard=replace(kernels.shard, settings=changed))

    def body_s(fullest: float) -> float:
        found = exact.unevenly(lambda n: operations.body(kernels.shard, n), float(tokens), fullest, dp)
        return float(gpu_seconds(found, kernels))

    return body_s(tokens), body_s(tokens / dp)


@given(st.integers(1, 8000), st.sampled_from([2, 4, 8]), st.sampled_from(BACKENDS))
@settings(max_examples=30)
def test_a_prompt_on_one_rank_is_never_faster_than_spread_over_all(tokens: int, dp: int, backend: str) -> None:
    """Nor does a step with more prompts take less than one with fewer."""
    alone_s, spread_s = seconds_over_ranks(tokens, dp, backend)
    assert alone_s >= spread_s * (1 - 1e-9)
    taken = [prompts(Layout(dp=dp, ep=dp), n, tokens / dp) for n in range(1, 2 * dp + 1)]
    assert taken == sorted(taken)


@given(st.integers(0, 200), st.integers(1, 9000), st.integers(1, 4), st.integers(1, 4000))
@settings(max_examples=40)
def test_the_clock_s_step_is_the_exact_one(decoding: int, context: int, count: int, new: int) -> None:
    layout = Layout(dp=4, ep=4)
    kernels = kernels_for(OSS, H100, layout)
    clock = step_clock(kernels, most_tokens=8192, most_rows=1024)
    batch = DecodeBatch(windows_of(OSS))
    for number in range(decoding):
        batch.join(number, float(context), 1000)
    wanted = exact.step(
        kernels, exact.Batch(float(decoding), float(context), float(count), float(new), 0.0, float(count))
    )
    pieces = [Piece(1000 + n, float(new), 0.0, rank=n) for n in range(count)]
    got, _ = clock.step(pieces, batch, decoding > 0)
    assert got == pytest.approx(wanted.total_s, rel=TABLE_TOLERANCE)


# --- closed form and simulator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_alone_a_prompt_takes_its_own_step(backend: str) -> None:
    """TTFT of a lone request is the front end and one step of one prompt on one rank: in step, closed form, simulator."""
    candidate, load = candidate_of("vllm:0.19.0", 2000, 100, backend)
    batch = exact.Batch(prefill_sequences=1.0, prefill_tokens=2000.0, finishing=1.0)
    step_s = exact.step(load.kernels, batch).total_s
    assert load.solo_ttft_s == pytest.approx(load.curves.front_end_s + step_s, rel=TABLE_TOLERANCE)
    requests = store([0.0], [2000], [100])
    run_open(replica_of(candidate, load, requests, 2100))
    assert requests.first_token[0] == pytest.approx(load.solo_ttft_s, rel=TABLE_TOLERANCE)
    itl_s = (requests.finished[0] - requests.first_token[0]) / 99
    assert itl_s == pytest.approx(load.solo_itl_s, rel=0.005)


@pytest.mark.parametrize(("engine", "isl"), [("vllm:0.19.0", 1000), ("tensorrt-llm:1.2.0", 3000)])
def test_closed_form_and_simulator_agree_under_load(engine: str, isl: int) -> None:
    count, osl = 2500, 300
    candidate, load = candidate_of(engine, isl, osl)
    most = load.highest_per_s
    ceiling = load.most_decoding
    for share, (ttft_parts, itl_parts) in PARTS.items():
        rate = share * most
        grid = np.geomspace(1e-3, ceiling, 4000)
        point = batching.open_loop(load.curves, load.batching, grid)
        times = arrival_times(count, rate, "poisson", np.random.default_rng(1)).tolist()
        requests = store(times, [isl] * count, [osl] * count)
        run_open(replica_of(candidate, load, requests, isl + osl))
        steady = slice(count // 5, count * 9 // 10)
        arrival, first, end = (
            np.array(column)[steady] for column in (requests.arrival, requests.first_token, requests.finished)
        )
        came = (len(arrival) - 1) / float(arrival[-1] - arrival[0])  # a second: a drawn rate is up to 2 % off
        at = int(np.searchsorted(point.requests_per_s, came))
        assert point.ttft_s["mean"][at] == pytest.approx(float((first - arrival).mean()), rel=ttft_parts), share
        assert point.itl_s["mean"][at] == pytest.approx(float((end - first).mean()) / (osl - 1), rel=itl_parts), share


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_prompts_of_any_rank_hold_up_what_decodes_on_all(dp: int) -> None:
    """ITL is never below the decode step of the same sequences, and more prompts for as many of them make it longer."""
    _, load = candidate_of("vllm:0.19.0", 2000, 300, dp=dp)
    decoding = np.geomspace(0.01, 400.0, 60)
    bare_s = curves_of.decode_step_s(load.curves, load.batching, decoding)
    point = batching.open_loop(load.curves, load.batching, decoding)
    assert np.all(point.itl_s["mean"] >= bare_s)
    some_s = curves_of.prefill_step_s(load.curves, load.batching, 0.0, np.arange(1.0, dp + 1))
    assert np.all(np.diff(some_s) >= 0) and some_s[-1] < dp * some_s[0]


def test_prompts_go_to_the_rank_with_the_fewest_tokens() -> None:
    """Five prompts at once on four ranks: 3,000 tokens are alone on theirs, the fifth joins one of 1,000."""
    candidate, load = candidate_of("vllm:0.19.0", 3000, 10)
    requests = store([0.0] * 5, [3000, 1000, 1500, 2000, 500], [10] * 5)
    replica = replica_of(candidate, load, requests, 3010)
    replica.clock = replace(replica.clock, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
    seen: list[list[Piece]] = []
    replica.observer = lambda started, ended, pieces, decoding: seen.append(list(pieces))
    run_open(replica)
    assert [(piece.units, piece.rank) for piece in seen[0]] == [(3000, 0), (1000, 1), (1500, 2), (2000, 3), (500, 1)]


def test_no_rank_prefills_more_than_its_budget_in_a_step() -> None:
    """A prompt of 20,000 tokens takes three steps of 8,192 though the other ranks are idle."""
    candidate, load = candidate_of("vllm:0.19.0", 20_000, 1)
    requests = store([0.0], [20_000], [1])
    replica = replica_of(candidate, load, requests, 20_001)
    seen: list[float] = []
    replica.observer = lambda started, ended, pieces, decoding: seen.extend(piece.units for piece in pieces)
    run_open(replica)
    assert candidate.settings.max_num_batched_tokens == 8192 and seen == [8192, 8192, 3616]


def test_what_fits_no_rank_s_cache_is_refused() -> None:
    """The pool is that of all ranks, but a sequence is on one of them."""
    candidate, load = candidate_of("vllm:0.19.0", 1000, 10)
    requests = store([0.0], [1000], [10])
    replica = replica_of(candidate, load, requests, 1010)
    need = replica.pool.need(1010, 1000)
    assert replica.pool.size_bytes > 4 * need
    replica.pool.size_bytes = 3 * need  # three quarters of it on a rank
    replica.submit(0)
    assert replica.refused == [0]
    replica.pool.size_bytes = 4 * need
    replica.refused.clear()
    replica.submit(0)
    assert not replica.refused


# --- commands -----------------------------------------------------------------------------------------------------

DP4 = ("-m", "gpt-oss-120b", "-g", "h100-sxm", "--tp", "1", "--dp", "4", "--ep", "4")


def document(capsys: pytest.CaptureFixture[str], *asked: str) -> dict[str, Any]:
    assert run([*asked, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_step_and_estimate_agree_on_a_lone_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    alone_ms = document(capsys, "step", *DP4, "--prefill", "2000")["total_s"] * 1000
    candidate, bare = candidate_of("vllm:0.33.0", 2000, 300)
    load = timed(candidate)  # with the correction of steps that the commands read
    assert load.curves.front_end_s == pytest.approx(bare.curves.front_end_s * load.kernels.correction.prefill)
    outside_ms = load.curves.front_end_s * 1000
    load_of = ["--isl", "2000", "--osl", "300", "--rps", "1", "--no-verify"]
    found = document(capsys, "estimate", *DP4, *load_of)
    assert found["latency"]["solo_ttft_ms"] == pytest.approx(alone_ms + outside_ms, rel=TABLE_TOLERANCE)
    run(["step", *DP4, "--prefill", "2000"])
    assert "the prompt on one" in " ".join(capsys.readouterr().out.split())


def test_running_and_queued_are_of_the_same_replica(capsys: pytest.CaptureFixture[str]) -> None:
    """Little's law over a whole run: what is in flight is the rate times the time of each."""
    asked = ["--isl", "2000", "--osl", "300", "--rps", "20", "--requests", "2000"]
    found = document(capsys, "simulate", *DP4, *asked)
    in_flight = found["batch"]["mean"] + found["queue"]["mean"]
    assert in_flight == pytest.approx(found["requests_per_s"] * found["e2e_ms"]["mean"] / 1000, rel=0.03)
