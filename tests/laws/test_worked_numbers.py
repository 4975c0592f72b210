"""Published and hand-worked numbers: the sizing course's, Databricks', and each formula at a point worked on
paper.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import ask, engine_of, memory_of, option, real_gpu, real_model, sequence_bytes

from sizing.answers import search
from sizing.catalog import shelf, workloads
from sizing.model import architecture, operations
from sizing.model.architecture import Layout, active_parameters
from sizing.model.attention import causal_pairs, chunked_pairs, gqa, in_chunk, windowed_pairs
from sizing.model.settings import SettingsConditions, resolve
from sizing.question import question
from sizing.replica import batching, links, surfaces
from sizing.replica.curves import Batching, Curves, token_grid
from sizing.specs import demand as capacity
from sizing.specs import units
from sizing.specs.engine_time import HostTime
from sizing.specs.model import SlidingWindowAttention
from sizing.specs.units import GIB, KIB, parse_limit
from sizing.specs.workload import Defaults

# --- weights and cache ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions", "active_billions"),
    [
        ("llama-3.1-8b", 8.030, 8.030),
        ("llama-3.1-70b", 70.554, 70.554),
        ("llama-2-7b", 6.738, 6.738),
        ("llama-2-70b", 68.977, 68.977),
        ("mixtral-8x7b-v0.1", 46.703, 12.880),
        ("deepseek-r1", 671.03, 37.55),  # without the multi-token-prediction layer
        ("qwen3-30b-a3b", 30.532, 3.353),
        ("gpt-oss-120b", 116.83, 5.71),  # 5.13 without the embedding, as its card counts
    ],
)
def test_parameters_are_those_of_the_checkpoint(name: str, billions: float, active_billions: float) -> None:
    assert architecture.parameters(real_model(name)) / 1e9 == pytest.approx(billions, rel=0.001)
    assert active_parameters(real_model(name)) / 1e9 == pytest.approx(active_billions, rel=0.002)


def test_a_70b_in_bf16_is_141_gb() -> None:
    """70.55e9 x 2 B = 141.1 GB, 131.4 GiB: two 80 GB cards at least."""
    used = memory_of(real_model("llama-3.1-70b"), real_gpu("h100-sxm"), Layout(tp=2))
    assert used.weights_gib * 2 * GIB / 1e9 == pytest.approx(141.1, abs=0.1)
    assert not memory_of(real_model("llama-3.1-70b"), real_gpu("h100-sxm")).fits


def test_grouped_queries_cache_an_eighth_of_multi_head() -> None:
    """Llama-2-70B: 80 layers x 8 KV heads x 128 x 2 x 2 B = 327,680 B; 64 heads would be 2.62 MB."""
    used = memory_of(real_model("llama-2-70b"), real_gpu("h100-sxm"), max_model_len=4096)
    assert used.kv_bytes_per_token == 327_680
    assert used.kv_bytes_per_token * 64 / 8 / 1e6 == pytest.approx(2.62, abs=0.005)


@pytest.mark.parametrize(("batch", "gib"), [(16, 5), (32, 10), (64, 20)])
def test_cache_of_a_batch(batch: int, gib: float) -> None:
    """Databricks, Llama-2-70B: 1,024 tokens are 0.3125 GiB in FP16, so 5, 10 and 20 GiB; half in 8 bit."""
    model = real_model("llama-2-70b")
    assert batch * sequence_bytes(model, 1024) == gib * GIB
    assert batch * sequence_bytes(model, 1024, kv="int8") == gib * GIB / 2


@pytest.mark.parametrize(
    ("experts", "hit", "tokens", "distinct"),
    [(8, 2, 3, 4.625), (128, 8, 32, 111.8), (256, 8, 32, 163.3), (256, 8, 128, 251.6)],
)
def test_expected_distinct_experts(experts: int, hit: int, tokens: int, distinct: float) -> None:
    """N (1-(1-k/N)^T): 8 (1 - 0.75^3) = 4.625. https://github.com/inference-sim/inference-sim/issues/789"""
    assert operations.expected_experts(experts, hit, tokens) == pytest.approx(distinct, rel=0.001)
    assert operations.expected_experts(experts, hit, 1) == pytest.approx(hit)


# --- demand, cost, energy -------------------------------------------------------------------------


def test_daily_users_of_a_rate() -> None:
    """The course's 70.747 requests/s a DGX: x 8 h x 3,600 s / 3 = 679,171 users, and back."""
    assert capacity.daily_active_users(70.747, 3, 8, 1) == pytest.approx(679_171, abs=1)
    assert capacity.requests_per_s(679_171.2, 3, 8, 1) == pytest.approx(70.747)
    assert capacity.daily_active_users(70.747, 9, 24, 1) == pytest.approx(679_171, abs=1)
    defaults = shelf.only(Defaults)
    assert capacity.daily_active_users(
        70.747, defaults.requests_per_user_per_day, defaults.active_hours, 1
    ) == pytest.approx(679_171, abs=1)


def test_the_call_centre_demand() -> None:
    """30e6 calls x 10 min x 1/min x 3 requests / 31,536,000 s = 28.539/s, x 7 = 199.77/s."""
    mean = 30e6 * 10 * 3 / (capacity.hours_per_year() * 3600)
    assert mean == pytest.approx(28.539, abs=0.001)
    assert mean * 7 == pytest.approx(199.77, abs=0.01)
    found = question.demand_of(workloads.load_workload("call-centre").spec)
    assert found is not None
    assert found.mean_per_s == pytest.approx(mean)
    assert found.peak_per_s == pytest.approx(mean * 7)


def test_servers_for_the_call_centre() -> None:
    """At 300 ms 200 / (8 x 5.195) = 4.81, five DGX; at 500 ms 200 / 70.747 = 2.83, three."""
    assert capacity.replicas_for(200, 8 * 5.195) == 5
    assert capacity.replicas_for(200, 70.747) == 3


def test_dollars_and_energy_of_a_million_tokens() -> None:
    """$3/h at 1,000 tok/s: 0.8333; at 5,000: 0.1667. 10,200 W x PUE 1.3 at 70.747 x 200 tok/s:
    0.2603 kWh.
    """
    assert units.usd_per_million_tokens(3.0, 1000) == pytest.approx(0.8333, abs=5e-5)
    assert units.usd_per_million_tokens(3.0, 5000) == pytest.approx(0.1667, abs=5e-5)
    assert units.kwh_per_million_tokens(10_200 * 1.3, 70.747 * 200) == pytest.approx(0.2603, abs=5e-5)


def test_a_limit_is_on_the_mean_unless_a_percentile_is_named() -> None:
    assert parse_limit("500ms") == ("mean", 0.5)
    assert parse_limit("p95:1.5s") == ("p95", 1.5)


# --- one operation, one collective ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "busy_ms"),
    [(1, 3.0), (2, math.sqrt(5)), (3, 9 ** (1 / 3)), (500, 2.0)],
)
def test_the_rounded_corner_of_the_roofline(p: float, busy_ms: float) -> None:
    """1e12 / (1e15 x 0.5) = 2 ms and 2.4e9 / (3e12 x 0.8) = 1 ms: (2^p + 1)^(1/p), and max for large p; 10 us
    on top.
    """
    seconds = surfaces.combined_s(
        1e12, 2.4e9, peak_flops=1e15, compute=0.5, bandwidth_bytes_per_s=3e12, memory=0.8, p=p, t0_s=10e-6
    )
    assert float(seconds) == pytest.approx(busy_ms * 1e-3 + 10e-6, rel=1e-9)


def test_the_roofline_is_symmetric_and_keeps_zero_work() -> None:
    peaks = {
        "peak_flops": 1e15,
        "compute": 1.0,
        "bandwidth_bytes_per_s": 1e12,
        "memory": 1.0,
        "p": 2.0,
        "t0_s": 5e-6,
    }
    assert float(surfaces.combined_s(3e12, 4e9, **peaks)) == pytest.approx(5e-3 + 5e-6)  # 3 and 4 ms
    assert float(surfaces.combined_s(4e12, 3e9, **peaks)) == pytest.approx(5e-3 + 5e-6)
    assert float(surfaces.combined_s(0.0, 0.0, **peaks)) == 5e-6
    both = surfaces.combined_s(np.array([3e12, 0.0]), np.array([4e9, 0.0]), **peaks)
    assert both == pytest.approx([5e-3 + 5e-6, 5e-6])


def test_streamed_bytes() -> None:
    """2 GB at 80 % of 2 TB/s: 1.25 ms, and 3 us of launch."""
    assert surfaces.streamed_s(2e9, bandwidth_bytes_per_s=2e12, memory=0.8, t0_s=3e-6) == pytest.approx(1.253e-3)


def test_the_share_of_prefill_attention_between_its_points() -> None:
    """Points (1,000, 0.2) and (4,000, 0.6): their geometric middle is 2,000, at sqrt(0.2 x 0.6)."""
    points = ((1000, 4000), (0.2, 0.6))
    at = np.array([500.0, 1000.0, 2000.0, 4000.0, 100_000.0])
    assert surfaces.curve_share(at, *points) == pytest.approx([0.1, 0.2, 0.12**0.5, 0.6, 0.6])
    assert float(surfaces.curve_share(0.0, *points)) > 0


def test_a_measured_collective_at_between_and_beyond_its_points() -> None:
    """(1 KiB, 10 us), (4 KiB, 40 us): 20 us at 2 KiB on log axes; 10 us below; 80 us at 8 KiB, linear in
    bytes.
    """
    kib, us = (1.0, 4.0), (10.0, 40.0)
    at = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0]) * KIB
    assert links.measured_s(at, kib, us) * 1e6 == pytest.approx([10, 10, 10, 20, 40, 80])


def test_measured_rows_of_the_profiles_are_reproduced() -> None:
    rows = [row for row in real_gpu("h100-sxm").efficiency if row.operation == "all_reduce"]
    assert rows
    for row in rows:
        assert links.measured_s(np.array(row.kib) * KIB, row.kib, row.us) * 1e6 == pytest.approx(row.us)


def test_ring_collectives() -> None:
    """All-reduce of 80 MB over 8 at 100 GB/s: 2 x 7/8 x 0.8 ms = 1.4 ms; all-gather half of it; 10 us latency
    each.
    """
    given = {"alpha_s": 10e-6, "bytes_per_s": 100e9}
    assert links.ring_s(80e6, "all_reduce", 8, **given) == pytest.approx(1.41e-3)
    assert links.ring_s(80e6, "all_gather", 8, **given) == pytest.approx(0.71e-3)
    assert links.ring_s(80e6, "reduce_scatter", 8, **given) == pytest.approx(0.71e-3)
    assert links.send_s(80e6, **given) == pytest.approx(0.81e-3)


# --- attention pairs ------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 7, 64])
@pytest.mark.parametrize("prior", [0, 1, 5, 300])
def test_query_key_pairs_against_a_loop(tokens: int, prior: int) -> None:
    """Token j of a chunk sees what is cached, the chunk before it, and itself; under a window the last w of
    these.
    """
    assert causal_pairs(tokens, prior) == sum(prior + j for j in range(1, tokens + 1))
    for window in (1, 4, 5, 6, 40, 1000):
        wanted = sum(min(prior + j, window) for j in range(1, tokens + 1))
        assert windowed_pairs(tokens, prior, window) == wanted, window
        own = sum((prior + j - 1) % window + 1 for j in range(1, tokens + 1))
        assert chunked_pairs(tokens, prior, window) == own, window


def test_a_chunk_is_seen_up_to_its_token_and_half_of_one_on_average() -> None:
    assert [float(in_chunk(place, 8192)) for place in (1, 8192, 8448, 8704, 100_000)] == [1, 8192, 6144, 4096, 4096]
    chunked, window = (SlidingWindowAttention(40, 8, 128, window=8192, chunked=of) for of in (True, False))
    for tokens, prior in ((512, 0), (512, 7680), (8192, 0)):  # within the first chunk both see the same
        found, same = (gqa.prefill(mixer, 1, 1.0, 3, tokens, prior) for mixer in (chunked, window))
        assert (found.flops, found.bytes, found.prompt_tokens) == (same.flops, same.bytes, same.prompt_tokens)
    # 32,768 tokens are four prompts of 8,192; the first tokens of a chunk see nothing before it.
    long, whole = gqa.prefill(chunked, 1, 1.0, 1, 32768, 0), gqa.prefill(chunked, 1, 1.0, 4, 8192, 0)
    assert (long.flops, long.sequences, long.new_tokens) == (whole.flops, 4, 8192)
    assert gqa.prefill(chunked, 1, 1.0, 1, 512, 8192).flops == gqa.prefill(chunked, 1, 1.0, 1, 512, 0).flops


# --- pipeline stages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "pp", "rule", "sizes"),
    [
        (80, 3, "last", (26, 26, 28)),
        (80, 3, "before_last", (27, 27, 26)),
        (80, 3, "tail", (26, 27, 27)),
        (80, 3, "head", (27, 27, 26)),
        (61, 4, "last", (15, 15, 15, 16)),
        (61, 4, "before_last", (15, 15, 16, 15)),
        (61, 4, "tail", (15, 15, 15, 16)),
        (61, 4, "head", (16, 15, 15, 15)),
        (61, 8, "before_last", (7, 7, 8, 8, 8, 8, 8, 7)),
        (32, 4, "must_divide", (8, 8, 8, 8)),
        (5, 1, "last", (5,)),
    ],
)
def test_stage_sizes(layers: int, pp: int, rule: str, sizes: tuple[int, ...]) -> None:
    assert architecture.stage_sizes(layers, pp, rule) == sizes


@pytest.mark.parametrize(
    ("engine", "sizes"),
    [
        ("vllm:0.7.0", (26, 26, 28)),  # the last stage takes what is left
        ("vllm:0.8.0", (27, 27, 26)),  # vllm-project/vllm pull 13839: from the last but one backwards
        ("sglang", (26, 27, 27)),
        ("tensorrt-llm", (27, 27, 26)),
    ],
)
def test_the_split_of_each_engine(engine: str, sizes: tuple[int, ...]) -> None:
    spec, version = engine_of(engine)
    where = SettingsConditions("H100 SXM", "hopper", 79.65, tp=1, pp=3, attention="other")
    rule = resolve(spec, version, where).pp_remainder
    assert architecture.stage_sizes(80, 3, rule) == sizes


def test_embedding_and_head_sit_on_the_end_stages() -> None:
    """Llama-3.1-8B, PP4: 8 layers x 218.1e6, 128,256 x 4,096 on the ends: 4.23 GiB, in the middle 3.25."""
    first, second, _, last = architecture.stages(real_model("llama-3.1-8b"), 4, "before_last")
    gib = []
    for stage in (first, second, last):
        matrices = architecture.stage_matrices(real_model("llama-3.1-8b"), stage, Layout(pp=4))
        gib.append(sum(2 * count * matrix.parameters for matrix, count in matrices) / GIB)
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    end = 8 * layer + 128_256 * 4096
    assert gib[0] == pytest.approx(2 * end / GIB)
    assert gib[1] == pytest.approx(2 * 8 * layer / GIB)
    assert gib[2] == pytest.approx(2 * (end + 4096) / GIB)  # the final norm


# --- from steps to latencies ----------------------------------------------------------------------


def flat_curves(decode_s: float, prefill_s: float, *, chunk: float = 1000.0) -> Curves:
    """Steps of a constant time: `decode_s` below half a chunk of tokens, `prefill_s` with a chunk in it."""
    grid = token_grid()
    return Curves(
        grid=grid,
        body_s=np.where(grid < chunk / 2, decode_s, prefill_s),
        head_s=np.zeros_like(grid),
        decode_s=np.zeros_like(grid),
        prompt_attention_s=0.0,
        prompt_floor_s=0.0,
        host=HostTime(per_step_us=0.0, per_sequence_us=0.0, overlapped=False),
    )


def service(*, osl: float, pp: int = 1, dp: int = 1, prefill_only: bool = True, isl: float = 1000.0) -> Batching:
    return Batching(
        isl=isl, osl=osl, chunk_tokens=1000.0, budget_tokens=1000.0, prefill_only=prefill_only, pp=pp, dp=dp
    )


@pytest.mark.parametrize(("busy", "waits"), [(0.5, 0.5), (0.8, 2.0), (0.9, 4.5), (0.95, 9.5)])
def test_the_wait_for_prefill_is_that_of_constant_service(busy: float, waits: float) -> None:
    """M/D/1: rho / (2 (1 - rho)) services of 0.1 s. With OSL 1 the load is prefill's utilisation."""
    point = batching.open_loop(flat_curves(0.01, 0.1), service(osl=1), np.array([busy]))
    assert point.prefill_share[0] == pytest.approx(busy)
    assert point.requests_per_s[0] == pytest.approx(busy / 0.1)
    assert point.ttft_s["mean"][0] - 0.1 == pytest.approx(waits * 0.1)
    # DistServe: D + R D^2 / (2 (1 - R D)), the same in another form.
    rate = busy / 0.1
    assert point.ttft_s["mean"][0] == pytest.approx(0.1 + rate * 0.1**2 / (2 * (1 - rate * 0.1)))


@pytest.mark.parametrize("busy", [0.3, 0.8])
def test_the_wait_of_a_pipeline_is_that_of_its_slowest_stage(busy: float) -> None:
    """DistServe (OSDI'24, section 3): two stages serve a prompt every D/2, so D + R D^2 / (4 (2 - R D))."""
    point = batching.open_loop(flat_curves(0.01, 0.1), service(osl=1, pp=2), np.array([busy]))
    rate, alone = float(point.requests_per_s[0]), 0.1
    assert rate == pytest.approx(busy / (alone / 2))
    assert point.ttft_s["mean"][0] == pytest.approx(alone + rate * alone**2 / (4 * (2 - rate * alone)))


def test_attention_ranks_that_step_together_share_a_queue() -> None:
    """Steps of 0.1 s take a prompt a rank, so two ranks carry twice the rate of one at the same utilisation; a prompt waits
    no longer than behind one rank alone with half of the arrivals (M/D/1: 0.2 s at 0.8), and for half of a step that runs.
    """
    one = batching.open_loop(flat_curves(0.01, 0.1), service(osl=1), np.array([0.8]))
    two = batching.open_loop(flat_curves(0.01, 0.1), service(osl=1, dp=2), np.array([0.8]))
    assert two.requests_per_s[0] == pytest.approx(2 * one.requests_per_s[0])
    assert 0.1 + 0.8 * 0.1 / 2 < two.ttft_s["mean"][0] < one.ttft_s["mean"][0]


def test_the_closed_form_worked_by_hand() -> None:
    """Prefill-only steps: d = 10 ms, a prompt 100 ms, OSL 101, 20 decoding.

    S = 10 + 20 x 100/100 = 30 ms; X = 20 / (100 x 0.03) = 6.667/s; prefill takes 0.667 of the time. A prompt
    waits for (1 - 0.667) x 10/2 = 1.667 ms and 0.667/(2 x 0.333) x 100 = 100 ms: TTFT 201.667 ms. The run of prefill
    steps that its own prefill is in goes on with 6.667 x 0.201667/(1 - 0.667) = 4.033 prompts, and 20/100 prompts come after
    each of its first 99 decode steps: ITL = 10 + (4.033 + 19.8) x 100/100 = 33.833 ms. E2E = TTFT + 100 x 33.833 ms.
    """
    point = batching.open_loop(flat_curves(0.01, 0.1), service(osl=101), np.array([20.0]))
    assert point.itl_s["mean"][0] == pytest.approx(0.033_833_333)
    assert point.requests_per_s[0] == pytest.approx(20 / 3)
    assert point.prefill_share[0] == pytest.approx(2 / 3)
    assert point.ttft_s["mean"][0] == pytest.approx(0.1 + 0.01 / 6 + 0.1)
    assert point.e2e_s["mean"][0] == pytest.approx(0.201_667 + 3.383_333, abs=1e-6)
    assert point.running[0] == pytest.approx(20 / 3 * float(point.e2e_s["mean"][0]))


def test_mixed_steps_cost_decodes_the_lengthening_only() -> None:
    """A step with a chunk takes 100 ms in place of 10: 90 ms a prompt. S = 10 + 20 x 90/100 = 28 ms; X = 20/2.8 = 7.143/s.

    A prompt waits for (1 - 0.714) x 10/2 = 1.429 ms and 0.714/(2 x 0.286) x 100 = 125 ms: TTFT 226.429 ms. During it and 99
    decode steps of 10 ms, 7.143 x (0.226429 + 0.99) = 8.689 prompts come. A prompt takes 90 ms more of these steps, in which
    7.143 x 0.09 x 0.99 = 0.636 others come: 8.689/(1 - 0.636) = 23.898 in all. ITL = 10 + 23.898 x 90/100 = 31.509 ms.
    """
    point = batching.open_loop(flat_curves(0.01, 0.1), service(osl=101, prefill_only=False), np.array([20.0]))
    assert point.itl_s["mean"][0] == pytest.approx(0.031_508_56)
    assert point.ttft_s["mean"][0] == pytest.approx(0.226_428_571)
    assert point.requests_per_s[0] == pytest.approx(20 / (100 * 0.028))


@pytest.mark.parametrize("prompts", [1, 2, 5, 8])
def test_prompts_that_arrive_together_wait_for_half_of_each_other(prompts: int) -> None:
    """Mean TTFT of b prompts, one a step: (1 + ... + b)/b = (b+1)/2 prefills. ai-dynamo/aiconfigurator pull
    1165
    """
    point = batching.closed_loop(flat_curves(0.01, 0.1), service(osl=31), np.array([float(prompts)]))
    assert point.ttft_s["mean"][0] == pytest.approx((prompts + 1) / 2 * 0.1)
    assert point.e2e_s["mean"][0] == pytest.approx(prompts * 0.1 + 30 * 0.01)
    assert point.requests_per_s[0] * point.e2e_s["mean"][0] == pytest.approx(prompts)  # Little


def test_the_time_per_output_token_leaves_the_first_out() -> None:
    """TTFT 50 ms, then 31 gaps of 10 ms, OSL 32: E2E 360 ms, ITL 10.000 ms = (360 - 50)/31."""
    point = batching.closed_loop(flat_curves(0.01, 0.05), service(osl=32), np.array([1.0]))
    assert point.e2e_s["mean"][0] == pytest.approx(0.360)
    assert point.itl_s["mean"][0] == pytest.approx(0.010)


@pytest.mark.parametrize("demand", [{"requests_per_s": 4.0}, {"concurrency": 40}])
def test_latencies_of_an_answer_add_up(demand: dict[str, float]) -> None:
    """E2E = TTFT + ITL x (OSL - 1), and requests in flight = requests/s x E2E."""
    asked = ask(real_model("llama-3.1-8b"), isl=2000, osl=200, demand=demand)
    best = search.search(asked.with_(gpu_types=(option("h100-sxm"),), precisions=(None,))).best
    assert best is not None
    ttft, itl, e2e = (getattr(best.pool.point, f"{n}_s")["mean"] for n in ("ttft", "itl", "e2e"))
    assert e2e == pytest.approx(ttft + 199 * itl)
    assert best.pool.point.running == pytest.approx(best.pool.point.requests_per_s * e2e)
