"""Speculative decoding: the paper's formula, published gains by batch, memory, closed form against simulator, laws."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from builders import real_model
from engine_builders import run_open, store
from hypothesis import given
from hypothesis import strategies as st
from optimised_builders import Laid, asking, extras_for, laid, load_of

from sizing.cli.main import run
from sizing.engine import deployment, rules
from sizing.engine.requests import arrival_times
from sizing.model.extras import expected_by_depth, expected_tokens
from sizing.replica import batching
from sizing.replica.capacity import Capacity, point_at_rate
from sizing.replica.timing import Timed
from sizing.specs.errors import InputError
from sizing.specs.units import GIB

# Leviathan et al., arXiv:2211.17192, Table 2 and Table 4 of the appendix: acceptance, tokens, draft over target step,
# predicted speed-up. T5-XXL with T5-small, base and large; two tasks at two temperatures.
LEVIATHAN = (
    (0.75, 7, 0.02, 3.2), (0.80, 7, 0.04, 3.3), (0.82, 7, 0.11, 2.5),
    (0.62, 7, 0.02, 2.3), (0.68, 5, 0.04, 2.4), (0.71, 3, 0.11, 2.0),
    (0.65, 5, 0.02, 2.4), (0.73, 5, 0.04, 2.6), (0.74, 3, 0.11, 2.0),
    (0.53, 5, 0.02, 1.9), (0.55, 3, 0.04, 1.8), (0.56, 3, 0.11, 1.6),
)  # fmt: skip
# EAGLE-3, arXiv:2503.01840: speed-up of throughput by batch, Llama-3.1-8B. Table 3: SGLang 0.4.4, H100, chains of 3.
BATCHES = (2, 4, 8, 16, 24, 32, 48, 56, 64)
SGLANG = {
    "eagle3": (1.81, 1.82, 1.62, 1.48, 1.39, 1.32, 1.38, 1.34, 1.38),
    "eagle": (1.40, 1.38, 1.23, 1.02, 0.93, 0.94, 0.88, 0.99, 0.99),
}
# Table 5: vLLM, A100, chains of 2.
VLLM = {
    "eagle3": (1.75, 1.68, 1.58, 1.49, 1.42, 1.36, 1.21, 1.01),
    "eagle": (1.30, 1.25, 1.21, 1.10, 1.03, 0.93, 0.82, 0.71),
}
PUBLISHED = [
    (engine, gpu, f"{method}:{tokens}", batch, value)
    for engine, gpu, tokens, table in (
        ("sglang:0.4.4", "h100-sxm", 3, SGLANG),
        ("vllm:0.8.5", "a100-sxm-80gb", 2, VLLM),
    )
    for method, values in table.items()
    for batch, value in zip(BATCHES, values, strict=False)
]
CONTEXT_TOKENS = 600.0  # MT-bench: two turns of some hundred tokens
METHODS = ("eagle", "eagle3", "medusa", "redrafter", "ngram:4@0.5", "draft:llama-3.2-1b:4@0.7")


@pytest.mark.parametrize(("acceptance", "tokens", "cost", "predicted"), LEVIATHAN)
def test_the_formula_is_the_papers(acceptance: float, tokens: int, cost: float, predicted: float) -> None:
    """Within 0.07: the paper rounds its acceptances to two digits."""
    assert expected_tokens(acceptance, tokens) / (tokens * cost + 1) == pytest.approx(predicted, abs=0.07)


def test_tokens_a_step_by_hand() -> None:
    """(1 - 0.8^6)/(1 - 0.8) = 0.737856/0.2; nothing accepted: the one token of plain decoding; all: g + 1."""
    assert expected_tokens(0.8, 5) == pytest.approx(3.68928)
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6


def test_acceptances_by_depth_by_hand() -> None:
    """1 + 0.7 + 0.7*0.6 + 0.7*0.6*0.5 = 2.33; equal ones are the formula's; what is stated last holds for deeper tokens."""
    assert expected_by_depth((0.7, 0.6, 0.5)) == pytest.approx(2.33)
    assert expected_by_depth((0.8,) * 5) == expected_tokens(0.8, 5)
    model = real_model("llama-3.1-8b")
    for asked, tokens in (
        ("eagle:3@0.7/0.6/0.5", 2.33),
        ("eagle:3@0.7/0.6", 1 + 0.7 + 0.42 + 0.252),
        ("eagle:3@0.5", 1.875),
    ):
        assert extras_for(model, speculative=asked).tokens_per_step == pytest.approx(tokens)
    with pytest.raises(InputError, match="3 acceptances of 2"):
        extras_for(model, speculative="eagle:2@0.7/0.6/0.5")


def test_acceptances_by_depth_are_written_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "500", "--osl", "100", "--rps", "2", "--no-verify")
    asked = "eagle3:3@0.8/0.7/0.6"
    assert run(["estimate", *arguments, "--speculative", asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"]["optimisations"]["speculative"]["by_depth"] == [0.8, 0.7, 0.6]
    assert f"--speculative {asked}" in found["simulate_command"]
    assert run(["estimate", *arguments, "--speculative", asked]) == 0
    assert "accepted in 80 %, 70 %, 60 % of cases" in " ".join(capsys.readouterr().out.split())


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_step_gives_at_least_one_token_and_at_most_all(shares: list[float]) -> None:
    tokens = expected_by_depth(shares)
    assert 1 <= tokens <= len(shares) + 1
    assert tokens <= expected_by_depth([*shares, 0.5])
    assert tokens == pytest.approx(expected_by_depth([*shares, 0.0]))


def gain(of: Laid, base: Laid, batch: float, context: float = CONTEXT_TOKENS) -> float:
    """Tokens per second of a decode step over those of a plain one."""
    plain_s, step_s = base.step(batch, context).total_s, of.step(batch, context).total_s
    return of.question.service.extras.tokens_per_step * plain_s / step_s


# At this batch drafting costs more than it gives (0.93); launches of 60 us hide that, and 1.07 is predicted.
OFF = pytest.mark.xfail(strict=True, reason="host time of a drafted step is not known by batch")


@pytest.mark.parametrize(
    ("engine", "gpu", "asked", "batch", "published"),
    [pytest.param(*each, marks=[OFF] if (each[0], each[-1]) == ("sglang:0.4.4", 0.93) else []) for each in PUBLISHED],
)
def test_gains_by_batch_are_as_published(engine: str, gpu: str, asked: str, batch: int, published: float) -> None:
    """Within 15 %: one acceptance a method and two host constants an engine version for all of the 34 points."""
    model = "llama-3.1-8b"
    predicted = gain(laid(model, gpu, engine=engine, speculative=asked), laid(model, gpu, engine=engine), float(batch))
    assert predicted == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("engine", "gpu", "tokens"), [("sglang:0.4.4", "h100-sxm", 3), ("vllm:0.8.5", "a100-sxm-80gb", 2)]
)
def test_eagle_costs_more_than_it_gains_at_large_batches(engine: str, gpu: str, tokens: int) -> None:
    """Published: below 1 from a batch of 24 (H100) or 32 (A100); the model is there by 48 and by 32."""
    of = laid("llama-3.1-8b", gpu, engine=engine, speculative=f"eagle:{tokens}")
    base = laid("llama-3.1-8b", gpu, engine=engine)
    assert gain(of, base, 8.0) > 1.1
    assert gain(of, base, 48.0) < 1


def test_no_acceptance_puts_eagle_below_plain_decoding_where_it_was_published() -> None:
    """Acceptances, of whatever depth, change the tokens of a step and nothing else: they scale all batches alike. Published: 1.40
    at a batch of 2 and 0.93 at 24, SGLang on H100; what makes the second of them 1 is off by more than 15 % at the first.
    """
    of, base = (laid("llama-3.1-8b", engine="sglang:0.4.4", **asked) for asked in ({"speculative": "eagle:3"}, {}))
    small, large = gain(of, base, 2.0), gain(of, base, 24.0)
    assert small / large < 0.85 * 1.40


@pytest.mark.parametrize("asked", METHODS)
def test_the_gain_shrinks_with_the_batch(asked: str) -> None:
    of, base = laid("llama-3.1-8b", speculative=asked), laid("llama-3.1-8b")
    gains = [gain(of, base, float(batch)) for batch in (1, 4, 16, 64, 256)]
    assert all(later < earlier for earlier, later in pairwise(gains)), gains


@pytest.mark.parametrize("asked", METHODS)
@pytest.mark.parametrize("batch", [1, 16, 256])
def test_nothing_accepted_is_plain_decoding_or_worse(asked: str, batch: int) -> None:
    of, base = laid("llama-3.1-8b", speculative=f"{asked.partition('@')[0]}@0"), laid("llama-3.1-8b")
    assert of.question.service.extras.tokens_per_step == 1
    assert of.step(float(batch), 1000.0).total_s >= base.step(float(batch), 1000.0).total_s


@given(batch=st.integers(1, 512), tokens=st.integers(1, 8), acceptance=st.floats(0, 1), context=st.integers(16, 8000))
def test_no_gain_is_beyond_the_tokens_of_a_step(batch: int, tokens: int, acceptance: float, context: int) -> None:
    """A step that verifies reads and multiplies at least what a plain one does."""
    of = laid("llama-3.1-8b", speculative=f"ngram:{tokens}@{acceptance:.4f}")
    assert gain(
        of, laid("llama-3.1-8b"), float(batch), float(context)
    ) <= of.question.service.extras.tokens_per_step * (1 + 1e-9)


def test_a_step_shows_what_drafts() -> None:
    names = {o.operation.name for o in laid("llama-3.1-8b", speculative="eagle3").step(8.0, 1000.0).operations}
    assert {"draft_join", "draft_widened_qkv", "draft_mlp_up", "draft_lm_head", "draft_decode_gqa"} <= names
    assert "draft_embed_all_reduce" not in names


def test_the_weights_of_an_eagle_3_head_by_hand() -> None:
    """hidden h = 4,096, MLP 14,336, 6,144 wide qkv: 3h*h + 2*h*6144 + h*h + 3*h*14336 + 32000*h = 425e6; 850 MB as published."""
    hidden, mlp, qkv, vocabulary = 4096, 14_336, 6144, 32_000
    weights = 3 * hidden**2 + 2 * hidden * qkv + hidden**2 + 3 * hidden * mlp + vocabulary * hidden
    assert 2 * weights == pytest.approx(850e6, rel=0.01)
    held = laid("llama-3.1-8b", speculative="eagle3").memory.beside_gib * GIB
    assert held == pytest.approx(2 * weights, rel=1e-3)  # and three norms


def test_a_draft_model_takes_its_weights_and_cache() -> None:
    """Llama-3.2-1B: 1.2359e9 parameters in 16 bit, and 16 layers of 2*8*64 values a token beside 32 of 2*8*128."""
    of, base = laid("llama-3.1-8b", speculative="draft:llama-3.2-1b:4@0.7"), laid("llama-3.1-8b")
    assert of.memory.beside_gib * GIB == pytest.approx(2 * 1.2359e9, rel=2e-3)
    assert of.memory.kv_bytes_per_token - base.memory.kv_bytes_per_token == 16 * 2 * 8 * 64 * 2
    assert of.memory.weights_gib == pytest.approx(base.memory.weights_gib + of.memory.beside_gib)
    assert of.memory.kv_cache_gib == pytest.approx(base.memory.kv_cache_gib - of.memory.beside_gib)


def test_drafted_tokens_have_slots() -> None:
    """Blocks of 16: a sequence of 4,096 tokens with 4 more needs one block more than without."""
    of, base = laid("llama-3.1-8b", speculative="ngram:4@0.5"), laid("llama-3.1-8b")
    assert of.memory.sequence_gib / base.memory.sequence_gib == pytest.approx(257 / 256)


def test_an_acceptance_that_nobody_published_must_be_stated() -> None:
    with pytest.raises(InputError, match="no published acceptance"):
        extras_for(real_model("llama-3.1-8b"), speculative="ngram:4")


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="cannot draft"):
        extras_for(real_model("llama-3.1-8b"), speculative="draft:mistral-7b-v0.1:4@0.7")


# --- closed form against simulator: within what holds without speculation -------------------------------------------

REQUESTS = 2500
ITL_TOLERANCE = {0.2: 0.02, 0.4: 0.03, 0.6: 0.05}
TTFT_TOLERANCE = {0.2: 0.03, 0.4: 0.05, 0.6: 0.07}


def most_of(load: Timed) -> Capacity:
    ceiling = load.most_decoding
    full = batching.open_loop(load.curves, load.batching, np.array([ceiling]))
    rate = float(full.requests_per_s[0]) / max(1.0, float(full.prefill_share[0]))
    return Capacity(rate, rate, ceiling, "")


@pytest.mark.parametrize("share", ITL_TOLERANCE)
@pytest.mark.parametrize("asked", [None, "eagle3", "draft:llama-3.2-1b:4@0.7", "ngram:4@0"])
@pytest.mark.parametrize("lengths", [(500, 200), (3000, 300)])
def test_closed_form_and_simulator_agree(share: float, asked: str | None, lengths: tuple[int, int]) -> None:
    isl, osl = lengths
    request = asking(
        "llama-3.1-8b",
        {"speculative": asked} if asked else {},
        isl=isl,
        osl=osl,
        serving={"tp": 1, "engine": "vllm:0.19.0"},
    )
    _, load = load_of(request)
    most = most_of(load)
    rate = share * most.requests_per_s
    point = point_at_rate(load, rate, most)
    times = arrival_times(REQUESTS, rate, "poisson", np.random.default_rng(1)).tolist()
    requests = store(times, [isl] * REQUESTS, [osl] * REQUESTS)
    (replica,) = deployment.schedulers(deployment.deployment_of(load), requests, longest=isl + osl)
    run_open(replica)
    steady = slice(REQUESTS // 5, REQUESTS * 9 // 10)
    arrival, first, finished = (
        np.array(c)[steady] for c in (requests.arrival, requests.first_token, requests.finished)
    )
    assert float((first - arrival).mean()) == pytest.approx(point.ttft_s["mean"], rel=TTFT_TOLERANCE[share])
    itl_s = float(((finished - first) / (osl - 1)).mean())
    assert itl_s == pytest.approx(point.itl_s["mean"], rel=ITL_TOLERANCE[share])
    assert replica.pool.held_bytes == pytest.approx(0, abs=1)


@pytest.mark.parametrize("asked", ["eagle3", "ngram:4@0.37"])
def test_every_token_is_counted_once_and_all_cache_is_given_back(asked: str) -> None:
    """Steps give whole tokens, on average those of the formula, and a request ends with the step that reaches its length."""
    request = asking("llama-3.1-8b", {"speculative": asked}, serving={"tp": 1})
    candidate, load = load_of(request)
    of = replace(rules.of_engine(candidate.settings, verified=request.service.extras.verified), slots=1)
    requests = store([0.0], [1000], [1001])
    (replica,) = deployment.schedulers(
        deployment.Deployment(load.kernels, candidate.memory, of), requests, longest=2001
    )
    run_open(replica)
    assert requests.generated == [1001]
    assert replica.passes == int(np.ceil(1000 / request.service.extras.tokens_per_step))
    assert replica.pool.held_bytes == pytest.approx(0, abs=1)


@pytest.mark.parametrize("command", [("memory",), ("step", "--decode", "1", "--context", "100")])
def test_what_a_checkpoint_must_bring_is_said(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """A config states MTP modules; whether a checkpoint's files hold them is not read, so that they do is an assumption."""
    assert run([*command, "-m", "mimo-7b", "-g", "h100-sxm", "--speculative", "mtp:1", "--json"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)["assumptions"]}
    needs = found["speculative decoding needs"]
    assert "holds the MTP modules" in needs["value"]
    assert needs["kind"] == "assumed"
    assert found["num_nextn_predict_layers"]["value"] == 1
    assert found["num_nextn_predict_layers"]["kind"] == "datasheet"
