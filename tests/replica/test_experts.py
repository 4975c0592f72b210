"""Experts over many GPUs: how uneven they are, and how tokens reach them, within a node and across several."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import ask, kernels_for, option, real_gpu, real_model
from hypothesis import given
from hypothesis import strategies as st

from sizing.cli.main import run
from sizing.model import architecture, operations
from sizing.model import operations as operation
from sizing.model.architecture import Layout
from sizing.model.operations import Operation, Routed
from sizing.replica import experts, links
from sizing.replica import replica as candidates
from sizing.replica import step as exact
from sizing.replica.kernels import Kernels
from sizing.replica.replica import resolve_settings

V3 = real_model("deepseek-v3")
BACKENDS = ("allgather", "low_latency", "high_throughput")


def kernels_of(layout: Layout, gpu: str = "h100-sxm", **settings: Any) -> Kernels:
    kernels = kernels_for(V3, real_gpu(gpu), layout)
    changed = kernels.settings.model_copy(update=settings)
    return replace(kernels, shard=replace(kernels.shard, settings=changed))


def of_layer(
    layout: Layout, tokens: float, gpu: str = "h100-sxm", **settings: Any
) -> dict[str, tuple[Operation, float]]:
    """The operations of an expert layer by name, each with the seconds of one execution."""
    kernels = kernels_of(layout, gpu, **settings)
    found = operations.split_body(kernels.shard, tokens)
    return {o.name: (o, float(kernels.seconds(o))) for o in found if o.count == 58}


@pytest.mark.parametrize("layout", [Layout(tp=4), Layout(tp=8, ep=8)], ids=["tp", "ep"])
@pytest.mark.parametrize(("name", "kernel"), [("minimax-m2.5", "triton"), ("qwen3-235b-a22b", "trtllm")])
def test_a_shape_that_an_engine_runs_by_another_kernel_is_timed_by_it(name: str, kernel: str, layout: Layout) -> None:
    """SGLang on Blackwell, by aiconfigurator's table: 3072 x 1536 in FP8 is Triton's, 4096 x 1536 is TRTLLM's."""
    kernels = kernels_for(real_model(name), real_gpu("b200"), layout, precision_name="fp8_block", engine="sglang:0.5.9")
    experts = [o for o in operations.split_body(kernels.shard, 8.0) if o.rule == "moe"]
    (choice,) = kernels.choices(experts).values()
    assert kernel in choice.row.kernel


def test_experts_without_a_measured_kernel_are_unevenly_liked_too() -> None:
    """One token hits its 8 experts and many tokens hit all, however liked; in between fewer are read than by even routing."""
    spared = []
    for tokens in (1.0, 64.0, 100_000.0):
        found = operations.split_body(kernels_of(Layout(tp=8), "mi300x").shard, tokens)
        routed = next(o.routed for o in found if o.rule == "moe")
        assert routed is not None
        spared.append(float(experts.spared_bytes(routed)) / (routed.inputs * routed.width * 3 * routed.weight_bytes))
    assert spared[0] == pytest.approx(0, abs=0.2)
    assert spared[1] == pytest.approx(48, rel=0.1)  # of 222
    assert spared[2] == pytest.approx(0, abs=1e-6)


# --- imbalance ----------------------------------------------------------------------------------------------------


def test_a_stated_imbalance_is_that_of_the_busiest_rank() -> None:
    """256 tokens of 8 experts over 8 ranks are 256 pairs a rank on average: 384 at 1.5, 256 at 1; 2,048 are all there are."""
    layout = Layout(dp=8, ep=8)
    weights = 3 * 7168 * 2048  # of an expert
    for stated, pairs in ((1.0, 256.0), (1.5, 384.0), (8.0, 2048.0), (20.0, 2048.0)):
        experts, _ = of_layer(layout, 256.0, expert_imbalance=stated)["experts"]
        assert experts.flops == pytest.approx(2 * pairs * weights)
    drawn, _ = of_layer(layout, 256.0)["experts"]
    assert drawn.flops == pytest.approx(2 * float(operation.busiest(256.0, 8)) * weights)


def test_the_busiest_rank_has_the_most_popular_experts_where_all_tokens_are_gathered() -> None:
    """Drawn: loads of 128 experts spread evenly in their logarithm over a range of 30, on 8 ranks, as often above as below."""
    routed = Routed(128, 8, 8, 4096.0, 1536.0, True, 1.0, None, pairs=1e6, arriving=1e6)
    popularity = 30 ** np.random.default_rng(0).random((4000, 8, 16))
    drawn = float(np.median((popularity.sum(axis=2) / popularity.sum(axis=(1, 2))[:, None]).max(axis=1) * 8))
    assert experts.most_liked(routed).pairs / 1e6 == pytest.approx(drawn, rel=0.03)
    for even in (replace(routed, ranks=1), replace(routed, dispatch="low_latency")):
        assert experts.most_liked(even) is even


def test_experts_on_every_rank_have_no_busiest_one() -> None:
    for stated in (None, 1.0, 3.0):
        experts, _ = of_layer(Layout(tp=8), 256.0, expert_imbalance=stated)["experts"]
        assert experts.flops == pytest.approx(2 * 2048 * 3 * 7168 * 2048 / 8)


@given(st.floats(1, 16), st.floats(1, 16), st.sampled_from(BACKENDS))
def test_more_imbalance_is_never_faster(one: float, other: float, backend: str) -> None:
    low, high = sorted((one, other))
    layout = Layout(dp=16, ep=16)
    even, uneven = (
        of_layer(layout, 2048.0, expert_imbalance=stated, all2all_backend=backend) for stated in (low, high)
    )
    assert sum(s for _, s in even.values()) <= sum(s for _, s in uneven.values()) * (1 + 1e-9)


# --- ways to the experts ------------------------------------------------------------------------------------------


def test_places_reached_are_what_draws_show() -> None:
    """8 experts over 8 ranks: 8 * (1 - (7/8)^8) = 5.25 of them; drawn with replacement."""
    assert links.reached(8, 8) == pytest.approx(5.2511, abs=1e-4)
    assert links.reached(1, 8) == 1.0
    drawn = np.random.default_rng(1).integers(0, 32, size=(20_000, 8))
    different = np.mean([len(set(row)) for row in drawn])
    assert links.reached(32, 8) == pytest.approx(different, rel=0.005)


def test_bytes_to_experts_by_hand() -> None:
    """16 ranks in two nodes, 128 tokens on each, FP8 out and BF16 back: 128 * 7,168 bytes, twice that back.

    Straight: a copy for each of 8 experts, half of them in the other node. By node: 2 * (1 - 1/2^8) = 1.992 nodes a token, half of
    them the other one; 16 * (1 - (15/16)^8) = 6.452 ranks over the link. Of 400 Gbit/s the ways reach 46 and 45 GB/s, of the
    link's 450 GB/s 225 and 315, at the same time.
    """
    layout = Layout(dp=16, ep=16)
    message = 128 * 7168
    direct = of_layer(layout, 2048.0, all2all_backend="low_latency", expert_imbalance=1.0)
    assert direct["experts_dispatch"][0].message_bytes == message
    assert direct["experts_combine"][0].message_bytes == 2 * message
    assert direct["experts_dispatch"][1] == pytest.approx(25e-6 + message * 8 / 2 / 46e9, rel=1e-4)
    by_node = of_layer(layout, 2048.0, all2all_backend="high_throughput", expert_imbalance=1.0)
    over_link_s, between_s = message * 6.4522 / 315e9, message * 1.9922 / 2 / 45e9
    assert by_node["experts_dispatch"][1] == pytest.approx(130e-6 + max(over_link_s, between_s), rel=1e-4)
    # More tokens than the direct way's buffers hold take the other way.
    assert direct["experts_combine"][1] == pytest.approx(by_node["experts_combine"][1], rel=1e-4)


# DeepEP, low-latency kernels, 128 tokens a rank, hidden 7,168, 8 experts a token, H800 with 400 Gbit/s each: microseconds to
# dispatch (FP8) and combine (BF16), https://github.com/deepseek-ai/DeepEP (README); from memory.
DEEPEP_US = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}


@pytest.mark.parametrize("ep", DEEPEP_US)
def test_ways_over_the_network_take_what_deepep_publishes(ep: int) -> None:
    """No constant was fitted to it: they are of another table, of H100 and H200."""
    found = of_layer(Layout(dp=ep, ep=ep), 128.0 * ep, all2all_backend="low_latency", expert_imbalance=1.0)
    for name, published_us in zip(("experts_dispatch", "experts_combine"), DEEPEP_US[ep], strict=True):
        assert found[name][1] * 1e6 == pytest.approx(published_us, rel=0.15), name


def test_in_one_node_both_ways_are_one() -> None:
    layout = Layout(dp=8, ep=8)
    direct, by_node = (of_layer(layout, 4096.0, all2all_backend=way) for way in BACKENDS[1:])
    assert direct["experts_dispatch"][1] == by_node["experts_dispatch"][1]
    assert direct["experts_combine"][1] == by_node["experts_combine"][1]
    assert "experts_all_gather" not in direct


@given(st.floats(1, 1e5), st.floats(1.01, 4), st.sampled_from(BACKENDS), st.sampled_from((8, 16, 64)))
def test_more_tokens_never_take_less(tokens: float, factor: float, backend: str, ep: int) -> None:
    layout = Layout(dp=ep, ep=ep)
    few, many = (of_layer(layout, t, all2all_backend=backend) for t in (tokens, tokens * factor))
    assert sum(s for _, s in few.values()) <= sum(s for _, s in many.values()) * (1 + 1e-9)


def test_large_steps_gain_where_tokens_cross_the_network_once() -> None:
    """4,096 tokens a rank over eight nodes: 5.25 nodes a token, 7/8 of them others, in place of 8 experts; few tokens go straight."""
    layout = Layout(dp=64, ep=64)
    many, few = (
        [of_layer(layout, 64 * tokens, all2all_backend=way)["experts_dispatch"][1] for way in BACKENDS[1:]]
        for tokens in (4096.0, 16.0)
    )
    assert many[0] == pytest.approx(many[1], rel=1e-9)
    assert few[0] < few[1]


# aiconfigurator's table of DeepEP's normal mode on H100 (24 SMs, notify included): 4,096 tokens in 8 and in 16 bit, microseconds.
NORMAL_US = {8: (498, 961), 16: (805, 1827), 32: (1853, 3641)}


@pytest.mark.parametrize("ep", NORMAL_US)
def test_many_tokens_take_what_was_measured(ep: int) -> None:
    found = of_layer(Layout(dp=ep, ep=ep), 4096.0 * ep, all2all_backend="high_throughput", expert_imbalance=1.0)
    for name, measured_us in zip(("experts_dispatch", "experts_combine"), NORMAL_US[ep], strict=True):
        assert found[name][1] * 1e6 == pytest.approx(measured_us, rel=0.25), name


def test_experts_over_nodes_are_reached_directly_and_within_a_node_by_a_gather() -> None:
    request = ask(real_model("deepseek-v3"), engine="sglang", isl=1000, osl=100)
    found = {
        gpus: resolve_settings(request.service, real_gpu("h100-sxm"), Layout(dp=gpus, ep=gpus)).all2all_backend
        for gpus in (8, 16)
    }
    assert found == {8: "allgather", 16: "low_latency"}


def test_gpus_of_one_tensor_parallel_group_share_the_sending() -> None:
    """TP2 DP4: each GPU sends half of its group's 64 tokens, and gathers all 64 after."""
    found = of_layer(Layout(tp=2, dp=4, ep=8), 256.0, all2all_backend="low_latency", expert_imbalance=1.0)
    assert found["experts_dispatch"][0].message_bytes == 32 * 7168
    gathered, _ = found["experts_all_gather"]
    assert (gathered.message_bytes, gathered.gpus) == (64 * 7168 * 2, 2)


def test_experts_cut_by_width_are_gathered_whatever_the_backend() -> None:
    """All-to-all is between ranks that each hold whole experts."""
    layout = Layout(dp=8, ep=1)
    assert "experts_all_gather" in of_layer(layout, 256.0, all2all_backend="low_latency")


# --- as asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("deepep_low_latency", "low_latency"),
        ("deepep-high-throughput", "high_throughput"),
        ("allgather_reducescatter", "allgather"),
        ("Low_Latency", "low_latency"),
    ],
)
def test_backends_by_their_names(written: str, meant: str) -> None:
    request = ask(V3, serving={"dp": 8, "ep": 8, "all2all_backend": written, "expert_imbalance": 1.2})
    settings = resolve_settings(request.service, real_gpu("h100-sxm"), Layout(dp=8, ep=8))
    assert (settings.all2all_backend, settings.expert_imbalance) == (meant, 1.2)


def test_a_model_of_671b_is_spread_over_sixteen_gpus_by_experts(capsys: pytest.CaptureFixture[str]) -> None:
    """DP16 EP16 over two H100 nodes: attention whole on each GPU, 16 experts a GPU a layer; served, and said how."""
    asked = ["estimate", "-m", "deepseek-v3", "-g", "h100-sxm", "--isl", "2000", "--osl", "500", "--rps", "4", "--json"]
    asked += ["--tp", "1", "--dp", "16", "--ep", "16", "--all2all-backend", "low_latency"]
    assert run(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["deployment"]["nodes_per_replica"] == 2
    assert found["inputs"]["serving"]["all2all_backend"] == "low_latency"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--expert-imbalance", "0.9", "serving.expert_imbalance"),
        ("--expert-imbalance", "nan", "serving.expert_imbalance"),
        ("--all2all-backend", "low_latncy", "low_latency"),
        ("--cp", "0", "serving.cp"),
        ("--dcp", "-1", "serving.dcp"),
    ],
)
def test_wrong_values_are_one_line(capsys: pytest.CaptureFixture[str], option: str, value: str, words: str) -> None:
    assert (
        run(
            ["estimate", "-m", "deepseek-v3", "-g", "h200-sxm", "--isl", "9", "--osl", "9", "--rps", "1", option, value]
        )
        == 2
    )
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert option in lines[0] or words in lines[0]


def test_what_is_said_of_experts_is_refused_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--expert-imbalance", "1.3", "--all2all-backend", "low_latency")
    both = ["--all2all-backend", "--expert-imbalance"]
    for command, without_effect in (
        (["estimate", "--isl", "9", "--osl", "9", "--rps", "1"], []),
        (["step", "--decode", "1", "--context", "9"], []),
        (["memory"], ["--expert-imbalance"]),  # which it changes for no model
    ):
        assert run([*command, "-m", "llama-3.1-8b", "-g", "h100-sxm", *asked]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert [line.split(":")[1].strip() for line in lines] == [*without_effect, *both]
        assert all("changes times, not what a GPU's memory holds" in line for line in lines[: len(without_effect)])
        assert all("has no experts" in line for line in lines[len(without_effect) :])


def test_a_rank_moves_the_tokens_that_come_to_it() -> None:
    """2,048 tokens gathered are all read and written on each of 16 ranks; dispatched, its 1,024 pairs of token and expert."""
    layout = Layout(dp=16, ep=16)
    gathered, sent = (
        of_layer(layout, 2048.0, all2all_backend=way, expert_imbalance=1.0)["experts"][0] for way in BACKENDS[:2]
    )
    assert gathered.bytes - sent.bytes == pytest.approx(2 * (2048 - 1024) * 7168 * 2)
    assert gathered.flops == sent.flops


def test_a_backend_is_taken_where_tokens_go_to_ranks_of_experts_and_refused_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["step", "-m", "deepseek-r1", "-g", "h200-sxm", "--decode", "64", "--context", "2000", "--json"]
    asked += ["--all2all-backend", "low_latency"]
    assert run([*asked, "--tp", "1", "--dp", "8", "--ep", "8"]) == 0
    (said,) = [a for a in json.loads(capsys.readouterr().out)["assumptions"] if a["what"] == "all2all_backend"]
    assert str(said["value"]).startswith("as asked")
    for layout in (["--tp", "1", "--dp", "8", "--ep", "4", "--engine", "sglang"], ["--tp", "8", "--ep", "8"]):
        assert run([*asked, *layout]) == 2
        assert "--all2all-backend: has no meaning where no tokens are sent" in capsys.readouterr().err


# --- redundant experts --------------------------------------------------------------------------------------------


def served_by(engine: str, **serving: int) -> Any:
    request = ask(V3, engine=engine, isl=2000, osl=100, serving={"tp": 1, **serving})
    return candidates.of(request.service, option("h100-sxm"), Layout(dp=serving["dp"], ep=serving["ep"]), None)


def test_32_redundant_experts_make_288_slots_four_on_each_of_72_ranks() -> None:
    """As SGLang's 96 H100 ran DeepSeek-V3's decoding: 9 nodes, 22,282 output tokens/s a node with 256 sequences a GPU."""
    found = served_by("sglang", dp=72, ep=72, redundant_experts=32)
    assert isinstance(found, candidates.Replica)
    up = next(m for m in architecture.layer_matrices(found.service.model, -1, found.layout) if m.name == "experts_up")
    assert up.copies == 4
    kernels = Kernels.of(found)
    taken = exact.step(kernels, exact.Batch(decode_sequences=72 * 256.0, decode_context_tokens=2050.0))
    assert 8 * 256 / taken.total_s == pytest.approx(22_282, rel=0.25)


def test_experts_that_do_not_come_out_even_are_refused_with_the_number_that_does() -> None:
    refused = served_by("sglang", dp=72, ep=72)
    assert isinstance(refused, candidates.Refusal) and "--redundant-experts 32" in refused.detail
    other = served_by("sglang", dp=72, ep=72, redundant_experts=31)
    assert isinstance(other, candidates.Refusal) and "--redundant-experts 32" in other.detail


def test_vllm_without_balancing_puts_one_expert_more_on_the_first_ranks() -> None:
    found = served_by("vllm", dp=72, ep=72)
    assert isinstance(found, candidates.Replica)
    up = next(m for m in architecture.layer_matrices(found.service.model, -1, found.layout) if m.name == "experts_up")
    assert up.copies == 4  # 256 = 72 * 3 + 40


def test_vllm_0_16_runs_the_kernel_of_expert_parallelism_on_one_rank_too() -> None:
    """FlashInfer CUTLASS comes before Triton for FP8 in blocks on Hopper; with EP it runs in 0.17 too."""

    def layer_us(version: str, layout: Layout) -> float:
        kernels = kernels_for(V3, real_gpu("h200-sxm"), layout, engine=f"vllm:{version}")
        (experts,) = {o for o in operations.split_body(kernels.shard, 8.0 * layout.dp) if o.rule == "moe"}
        return 1e6 * float(kernels.seconds(experts))

    assert 25 < layer_us("0.16.0", Layout(tp=8)) - layer_us("0.17.0", Layout(tp=8)) < 60
    assert layer_us("0.16.0", Layout(tp=8, ep=8)) == layer_us("0.17.0", Layout(tp=8, ep=8))


def test_ampere_keeps_the_rate_of_its_experts_table() -> None:
    """8,192 tokens of Mixtral-8x22B over eight A100 were measured at 8.1 ms a layer: no loss to a lower clock, as on Hopper."""
    model = real_model("mixtral-8x22b")
    for gpu, least_s, most_s in (("a100-sxm-80gb", 7.2e-3, 9e-3), ("h100-sxm", 2e-3, 4e-3)):
        by = kernels_for(model, real_gpu(gpu), Layout(tp=8), engine="tensorrt-llm:0.15.0")
        (found,) = [
            one for one in operations.split_body(by.shard, 8192.0) if one.routed is not None and one.rule == "moe"
        ]
        assert least_s < float(by.seconds(found)) < most_s
