"""Optimisations: what they change in memory and time, and the laws that hold."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from builders import real_model, toy_model
from engine_builders import run_open, store
from optimisation_questions import MODEL, answer
from optimised_builders import asking, extras_for, laid, load_of

from sizing.cli.main import run
from sizing.engine import deployment
from sizing.engine.requests import arrival_times
from sizing.model.extras import NOTHING, cached_tokens
from sizing.replica.capacity import most_of, point_at_rate, points_of
from sizing.specs.units import GIB, GIGA

BYTES_PER_TOKEN = 32 * 2 * 8 * 128 * 2  # layers, key and value, KV heads, head size, 16 bit: 131,072

EVERY: dict[str, Any] = {
    "speculative": "eagle3:3@0.75",
    "sparsity": "2:4",
    "prefix": {"hit": 0.6, "shared_tokens": 320, "distinct": 4},
    "lora": "4x16",
    "images": "1x560x560",
    "kv_offload": "0.2",
}


# --- how they are written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hit", "shared", "length", "code"),
    [
        ("1", 500_000, 4096, 2),
        ("0.5", 2048, 4096, 0),
        ("0.5", 2049, 4096, 2),
        ("0", 1, 4096, 2),
        ("0.29", 29, 100, 0),  # 0.29 * 100 is 28.999999999999996 in binary
    ],
)
def test_memory_holds_shared_prefixes_to_its_length(
    capsys: pytest.CaptureFixture[str], hit: str, shared: int, length: int, code: int
) -> None:
    where = ("-m", MODEL, "-g", "h100-sxm", "--max-model-len", str(length))
    assert run(["memory", *where, "--prefix-hit", hit, "--prefix-shared", str(shared)]) == code
    said = capsys.readouterr().err
    assert said == "" if code == 0 else f"{shared:,} shared tokens are more than" in said


def test_shared_prefixes_that_leave_no_room_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """A prefix of 4,096 tokens is 4,096 * 131,072 bytes = 0.5 GiB; a pool of 54.8 GiB holds 109 of them and not 110."""
    arguments = ("memory", "-m", MODEL, "-g", "h100-sxm", "--max-model-len", "4096", "--prefix-hit", "1")
    shared = (*arguments, "--prefix-shared", "4096", "--prefix-distinct")
    few, many = answer(capsys, *shared, "109"), answer(capsys, *shared, "130")
    assert few["fits"] and few["memory"]["kv_cache_gib"] == pytest.approx(54.83, abs=0.02)
    assert not many["fits"]
    assert many["memory"]["deficit_gib"] == pytest.approx(65 - many["memory"]["kv_cache_gib"])
    assert many["memory"]["max_concurrency"] == 0
    assert "65.0 GiB of shared prefixes" in many["reason"]
    assert run([*shared, "130"]) == 1


@pytest.mark.parametrize("command", [("step", "--prefill", "100"), ("roofline",)], ids=lambda command: command[0])
@pytest.mark.parametrize(
    "asked", [("--prefix-hit", "0.5"), ("--prefix-hit", "0.5", "--prefix-shared", "500"), ("--kv-offload", "0.5")]
)
def test_a_step_takes_the_tokens_it_is_given(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    assert run([*command, "-m", MODEL, "-g", "h100-sxm", *asked]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{', '.join(asked[::2])}: changes which tokens a step gets" in line
    assert "--prefill N" in line


# --- what is off changes nothing; order changes nothing -----------------------------------------------------------------


def test_no_optimisation_puts_nothing_beside_a_model() -> None:
    assert extras_for(real_model(MODEL)) == NOTHING


@pytest.mark.parametrize("command", ["estimate", "simulate"])
def test_a_hit_rate_of_zero_is_the_base(capsys: pytest.CaptureFixture[str], command: str) -> None:
    arguments = [
        command,
        "rag",
        "-g",
        "h100-sxm",
        *(["--rps", "3", "--requests", "100"] if command == "simulate" else []),
    ]
    base, zero = answer(capsys, *arguments), answer(capsys, *arguments, "--prefix-hit", "0")
    assert zero["inputs"].pop("optimisations") == {"prefix": {"hit": 0.0}}
    assert base["inputs"].pop("optimisations") == {}
    for found in (base, zero):
        del found["assumptions"]
        found.pop("simulate_command", None)
    assert zero == base


def test_the_order_in_which_they_are_asked_for_changes_nothing() -> None:
    for pair in permutations(EVERY, 2):
        one = laid(MODEL, **{name: EVERY[name] for name in pair})
        other = laid(MODEL, **{name: EVERY[name] for name in reversed(pair)})
        assert one.memory == other.memory
        assert one.step(8.0, 1000.0).total_s == other.step(8.0, 1000.0).total_s


def test_gains_add_up_whatever_else_is_on() -> None:
    """Weights beside the model are the sum of those of each optimisation alone."""
    alone = [laid(MODEL, **{name: EVERY[name]}).memory.beside_gib for name in ("speculative", "lora", "images")]
    together = laid(MODEL, **{name: EVERY[name] for name in ("speculative", "lora", "images")}).memory.beside_gib
    assert together == pytest.approx(sum(alone))


# --- prefix caching -----------------------------------------------------------------------------------------------------


def test_the_last_token_is_always_computed() -> None:
    assert [cached_tokens(1000, hit) for hit in (0.0, 0.25, 1.0)] == [0, 250, 999]


def test_prefill_falls_with_the_hit_rate_and_still_attends_to_everything() -> None:
    """Of 3,000 tokens 60 % are cached: 1,200 are computed, whose attention is that of the last 1,200 of 3,000."""
    (_, base), (_, hit) = (
        load_of(asking(MODEL, asked, isl=3000, osl=250, serving={"tp": 1})) for asked in ({}, {"prefix": 0.6})
    )
    assert (base.batching.isl, hit.batching.isl) == (3000, 1200)
    expected = laid(MODEL).step(prefill_sequences=1.0, prefill_tokens=1200.0, prefill_prior_tokens=1800.0)
    attention = sum(o.seconds for o in expected.operations if o.operation.name == "prefill_gqa")
    assert hit.curves.prompt_attention_s == pytest.approx(attention)
    assert hit.solo_ttft_s < base.solo_ttft_s
    assert hit.solo_itl_s == base.solo_itl_s  # decode attends to the whole context


@pytest.mark.parametrize("shared", [0, 160, 1000, 1799])
def test_shared_prefixes_are_held_once(shared: int) -> None:
    """Whole blocks of 16 tokens are shared: each sequence holds so many fewer, the pool each of four prefixes once."""
    asked = {"prefix": {"hit": 0.6, "distinct": 4} | ({"shared_tokens": shared} if shared else {})}
    of, base = laid(MODEL, max_model_len=3200, **asked).memory, laid(MODEL, max_model_len=3200).memory
    blocks = shared // 16
    assert of.sequence_gib * GIB == pytest.approx((200 - blocks) * 16 * BYTES_PER_TOKEN)
    assert of.shared_prefix_gib * GIB == pytest.approx(4 * blocks * 16 * BYTES_PER_TOKEN)
    assert of.kv_cache_gib == base.kv_cache_gib
    assert of.max_concurrency == pytest.approx((base.kv_cache_gib - of.shared_prefix_gib) / of.sequence_gib, rel=1e-2)


def test_simulated_pools_hold_what_the_closed_form_says() -> None:
    request = asking(
        MODEL, {"prefix": {"hit": 0.6, "shared_tokens": 1600, "distinct": 8}}, isl=3000, osl=200, serving={"tp": 1}
    )
    candidate, load = load_of(request)
    pool = deployment.kv_cache(deployment.deployment_of(load), 3200)
    assert pool.need(3200, 3000) == pytest.approx(candidate.memory.sequence_gib * GIB)
    assert pool.size_bytes / pool.need(3200, 3000) == pytest.approx(candidate.memory.max_concurrency, rel=1e-3)


@pytest.mark.parametrize("hit", [0.3, 0.9])
@pytest.mark.parametrize(("share", "itl", "ttft"), [(0.2, 0.02, 0.03), (0.4, 0.03, 0.05), (0.6, 0.05, 0.07)])
def test_closed_form_and_simulator_agree_about_prefixes(hit: float, share: float, itl: float, ttft: float) -> None:
    """Within what holds without them."""
    isl, osl, count = 3000, 300, 2500
    request = asking(MODEL, {"prefix": hit}, isl=isl, osl=osl, serving={"tp": 1, "engine": "vllm:0.19.0"})
    _, load = load_of(request)
    most = most_of([load], request.target)[0]
    assert most is not None
    rate = share * most.requests_per_s / request.target.max_utilisation
    times = arrival_times(count, rate, "poisson", np.random.default_rng(1)).tolist()
    requests = store(times, [isl] * count, [osl] * count)
    (replica,) = deployment.schedulers(deployment.deployment_of(load), requests, longest=isl + osl)
    run_open(replica)
    steady = slice(count // 5, count * 9 // 10)
    arrival, first, finished = (
        np.array(c)[steady] for c in (requests.arrival, requests.first_token, requests.finished)
    )
    point = point_at_rate(load, rate, most)
    assert float((first - arrival).mean()) == pytest.approx(point.ttft_s["mean"], rel=ttft)
    assert float(((finished - first) / (osl - 1)).mean()) == pytest.approx(point.itl_s["mean"], rel=itl)


def test_more_hits_never_hurt() -> None:
    most = []
    for hit in (0.0, 0.2, 0.5, 0.8, 1.0):
        request = asking(MODEL, {"prefix": hit}, isl=3000, osl=250, serving={"tp": 1})
        _, load = load_of(request)
        found = most_of([load], request.target)[0]
        assert found is not None
        most.append(found.requests_per_s)
    assert most == sorted(most)
    assert most[-1] > 1.5 * most[0]


# --- adapters -------------------------------------------------------------------------------------------------------------


def test_adapters_by_hand() -> None:
    """A layer of Llama-3.1-8B, hidden 4,096, qkv 6,144, MLP 14,336: adapters of q, k, v (3*4096 + 6144), o (4096 + 4096), gate
    and up (2*4096 + 28672), down (14336 + 4096) = 81,920 values a rank; 32 layers, rank 64, 16 slots, 2 bytes: 5.37e9.
    """
    held = laid(MODEL, lora="16x64").memory.beside_gib * GIB
    assert held == pytest.approx(81_920 * 32 * 64 * 16 * 2)


def test_adapters_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B, hidden 2,048, 128 experts of 768: gate and up 2*2048 + 2*768, down 768 + 2048 = 8,448 values a rank and
    expert; 48 layers, rank 16, 4 slots, 2 bytes: 6.64e9 beside those of attention.
    """
    attention = laid("qwen3-30b-a3b", lora="4x16").memory.beside_gib
    held = laid("qwen3-30b-a3b", lora="4x16+experts").memory.beside_gib
    assert (held - attention) * GIB == pytest.approx(8448 * 128 * 48 * 16 * 4 * 2)


def test_a_token_goes_through_the_adapters_of_its_experts() -> None:
    """8 of 128 experts: 8 pairs a token, of rank 16 through 2*2048 + 2*768 values; one token reads 8 of the 512 adapters."""
    of = laid("qwen3-30b-a3b", lora="4x16+experts")
    (up,) = [o.operation for o in of.step(1.0, 100.0).operations if o.operation.name == "lora_experts_up"]
    width = 2 * 2048 + 2 * 768
    assert up.count * up.flops == pytest.approx(48 * 2 * 8 * 16 * width)
    hit = 512 * (1 - (1 - 1 / 512) ** 8)
    assert up.count * up.bytes == pytest.approx(48 * (hit * 16 * width * 2 + 8 * width * 2))
    assert of.step(8.0, 100.0).total_s > laid("qwen3-30b-a3b", lora="4x16").step(8.0, 100.0).total_s


def test_adapters_of_experts_are_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-g", "h100-sxm", "--isl", "500", "--osl", "50", "--rps", "1", "--no-verify", "--lora", "4x16+experts")
    found = answer(capsys, "estimate", "-m", "qwen3-30b-a3b", *arguments)
    assert found["inputs"]["optimisations"]["lora"] == {"slots": 4, "rank": 16, "experts": True}
    assert "--lora 4x16+experts" in found["simulate_command"]
    assert run(["estimate", "-m", MODEL, *arguments]) == 2
    assert "no routed experts" in capsys.readouterr().err


def test_adapters_cost_time_that_grows_with_their_rank() -> None:
    times = [laid(MODEL, **asked).step(64.0, 1000.0).total_s for asked in ({}, {"lora": "8x16"}, {"lora": "8x128"})]
    assert times == sorted(times)
    assert times[1] > times[0]


def test_one_adapter_is_read_once_whatever_the_batch() -> None:
    """Bytes of its weights alone: those that grow with tokens left out."""
    for name in ("lora_o_proj", "lora_mlp_down"):
        one, two, three = (
            sum(
                o.operation.bytes
                for o in laid(MODEL, lora="1x64").step(n, 100.0).operations
                if o.operation.name == name
            )
            for n in (8.0, 16.0, 24.0)
        )
        assert three - two == pytest.approx(two - one)
        assert 2 * one - two > 0


# --- images ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "tokens"),
    [
        ("1x560x560", 400),
        ("1x561x560", 400),
        ("1x575x560", 420),
        ("2x1024x768", 2 * 37 * 27),
        ("1x1x1", 1),
        ("1x100000x100000", 16_384),
    ],
)
def test_tokens_of_images_by_hand(images: str, tokens: int) -> None:
    """A token for 28 x 28 pixels (patches of 14, 2 x 2 merged), sides to the nearest: 560/28 = 20 a side, 575/28 = 20.5 is 21."""
    encoder = extras_for(real_model(MODEL), images=images).encoder
    assert encoder is not None
    assert encoder.tokens == tokens


def test_images_lengthen_prompts_and_take_an_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("estimate", "-m", MODEL, "-g", "h100-sxm", "--isl", "600", "--osl", "100", "--rps", "2", "--no-verify")
    of, text = answer(capsys, *arguments, "--images", "1x560x560"), answer(capsys, *arguments, "--isl", "1000")
    assert of["inputs"]["isl"] == text["inputs"]["isl"] == 1000
    assert of["latency"]["solo_ttft_ms"] > text["latency"]["solo_ttft_ms"]
    assert of["memory"]["beside_gib"] * GIB == pytest.approx(2 * 675e6)


def test_a_model_with_its_own_tower_brings_its_weights() -> None:
    assert laid("gemma-3-12b", images="1x560x560").memory.beside_gib == 0


def test_what_else_lies_outside_a_text_is_no_tower() -> None:
    """Learned positions are parameters beside the layers too, and no encoder: a borrowed one is held beside them."""
    of = laid("opt-6.7b", images="1x560x560")
    assert of.question.service.model.extra_parameters > of.question.service.model.vision_parameters == 0
    assert of.memory.beside_gib * GIB == pytest.approx(2 * 675e6)


@pytest.mark.parametrize(
    ("model", "said"), [(MODEL, "must be one that takes images"), ("ministral-3-3b", "in place of the model's own")]
)
def test_a_borrowed_encoder_is_named_and_whose_it_is_not(
    capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    arguments = ("estimate", "-m", model, "-g", "h100-sxm", "--isl", "600", "--osl", "100", "--rps", "2", "--no-verify")
    found = answer(capsys, *arguments, "--images", "1x560x560")["assumptions"]
    (encoder,) = [one for one in found if one["what"] == "image encoder"]
    assert encoder["kind"] == "assumed"
    assert "Qwen2-VL" in encoder["value"]
    assert said in encoder["value"]
    assert not any("not modelled" in str(one["value"]) for one in found)


@pytest.mark.parametrize("command", [("estimate", "--no-verify"), ("simulate", "--requests", "10")])
def test_too_many_images_are_to_blame_themselves(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """400 tokens each: 400 of them are 160,000 of the 131,072 positions, of which the text of 700 leaves 130,372."""
    where = ("-m", MODEL, "-g", "h100-sxm", "--isl", "600", "--osl", "100", "--rps", "2")
    assert run([*command, *where, "--images", "400x560x560"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--images: 160,000 tokens" in line
    assert "at most 130,372 tokens" in line


@pytest.mark.parametrize(
    ("images", "words"), [("1x560x560", "has 1 image of 560 x 560"), ("2x560x560", "has 2 images of 560 x 560")]
)
def test_one_image_is_one(capsys: pytest.CaptureFixture[str], images: str, words: str) -> None:
    assert run(["step", "-m", "gemma-3-12b", "-g", "h100-sxm", "--prefill", "1000", "--images", images]) == 0
    assert words in capsys.readouterr().out


# --- cache in host memory ---------------------------------------------------------------------------------------------------


def test_a_cache_comes_back_at_the_rate_of_the_link() -> None:
    """Half of 3,000 tokens of 131,072 bytes at 40 GB/s: 4.9 ms of waiting, in place of computing 1,500 tokens."""
    loads = {
        rate: load_of(asking(MODEL, {"kv_offload": f"0.5@{rate}"}, isl=3000, osl=250, serving={"tp": 1}))[1]
        for rate in (40, 80)
    }
    assert loads[40].solo_ttft_s - loads[80].solo_ttft_s == pytest.approx(1500 * BYTES_PER_TOKEN / (80 * GIGA))
    hit = load_of(asking(MODEL, {"prefix": 0.5}, isl=3000, osl=250, serving={"tp": 1}))[1]
    assert loads[40].solo_ttft_s - hit.solo_ttft_s == pytest.approx(1500 * BYTES_PER_TOKEN / (40 * GIGA))
    assert loads[40].curves.body_s is not hit.curves.body_s
    assert np.array_equal(loads[40].curves.body_s, hit.curves.body_s)


# --- prefill alone: embedding, reranking, classification --------------------------------------------------------------------


def test_with_one_token_out_nothing_decodes_and_drafts_gain_nothing() -> None:
    for asked in ({}, {"speculative": "eagle3"}):
        request = asking(MODEL, asked, isl=500, osl=1, serving={"tp": 1})
        _, load = load_of(request)
        most = most_of([load], request.target)[0]
        assert most is not None
        assert load.most_decoding == 1.0
        assert load.solo_itl_s == 0
        point = points_of([load], [request.target], [most], [1])[0]
        assert point.decoding == 0


def test_every_optimisation_leaves_a_toy_model_whole() -> None:
    """None of them changes the model itself."""
    model = toy_model()
    before = hash(model)
    extras_for(model, **{name: EVERY[name] for name in EVERY})
    assert hash(model) == before
