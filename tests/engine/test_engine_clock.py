"""The real clock against the exact step, a stretch against its single steps, and how many steps a time takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from engine_builders import served
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine.batch import DecodeBatch, Piece
from sizing.engine.deployment import StepClock, filled_sizes, windows_of
from sizing.replica import step as exact

TABLE_TOLERANCE = 0.005
MODELS = (
    ("llama-3.1-8b", "vllm:0.19.0", 1),
    ("llama-3.1-8b", "vllm:0.6.0", 1),
    ("llama-3.1-70b", "vllm:0.19.0", 8),
    ("gpt-oss-20b", "vllm:0.19.0", 1),
    ("gemma-3-27b", "sglang:0.5.9", 1),
    ("deepseek-v2-lite", "vllm:0.19.0", 1),
    ("qwen3-next-80b-a3b", "vllm:0.19.0", 4),
    ("qwen3-30b-a3b", "tensorrt-llm:1.2.0", 1),
)
models = st.sampled_from(MODELS)


def decoding(model: tuple[str, str, int], sequences: int, context: int, steps: int = 10_000) -> DecodeBatch:
    batch = DecodeBatch(windows_of(served(model[0], model[1], tp=model[2]).model))
    for number in range(sequences):
        batch.join(number, float(context), steps)
    return batch


@given(models, st.integers(1, 900), st.integers(1, 12_000))
def test_a_decode_step_is_the_exact_one(model: tuple[str, str, int], sequences: int, context: int) -> None:
    of = served(model[0], model[1], tp=model[2])
    wanted = exact.step(of.kernels, exact.Batch(sequences, context)).total_s
    got = of.clock.series(decoding(model, sequences, context)).time(1)
    assert got == pytest.approx(wanted, rel=TABLE_TOLERANCE)


@given(models, st.lists(st.integers(1, 12_000), min_size=1, max_size=40))
def test_unequal_contexts_cost_their_sum(model: tuple[str, str, int], contexts: list[int]) -> None:
    """Decode attention adds up over sequences: the batch of all costs what each adds to the floor."""
    of = served(model[0], model[1], tp=model[2])
    batch = DecodeBatch(windows_of(of.model))
    for number, context in enumerate(contexts):
        batch.join(number, float(context), 10_000)
    bare = replace(of.clock, host_step_s=0.0, host_sequence_s=0.0)
    size = len(contexts)
    equal = [bare.series(decoding(model, size, context)).time(1) for context in contexts]
    assert bare.series(batch).time(1) == pytest.approx(sum(equal) / size, rel=1e-9)


@given(models, st.integers(1, 8192), st.integers(0, 30_000))
def test_a_prefill_step_is_the_exact_one(model: tuple[str, str, int], new: int, prior: int) -> None:
    of = served(model[0], model[1], tp=model[2])
    batch = exact.Batch(prefill_sequences=1, prefill_tokens=new, prefill_prior_tokens=prior, finishing=1)
    wanted = exact.step(of.kernels, batch).total_s
    got, extra_s = of.clock.step([Piece(0, float(new), float(prior))], DecodeBatch(windows_of(of.model)), False)
    assert extra_s == 0.0
    assert got == pytest.approx(wanted, rel=TABLE_TOLERANCE)


@given(models, st.integers(1, 300), st.integers(1, 9000), st.integers(1, 4), st.integers(1, 4000))
def test_a_mixed_step_is_the_exact_one(
    model: tuple[str, str, int], sequences: int, context: int, prompts: int, new: int
) -> None:
    of = served(model[0], model[1], tp=model[2])
    together = exact.Batch(sequences, context, prompts, new, 0.0, prompts)
    wanted = exact.step(of.kernels, together).total_s
    pieces = [Piece(1000 + number, float(new), 0.0) for number in range(prompts)]
    got, _ = of.clock.step(pieces, decoding(model, sequences, context), True)
    assert got == pytest.approx(wanted, rel=4 * TABLE_TOLERANCE)  # short prompts fill the GPU together


@given(
    models,
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.integers(1, 400),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0, 1.001, 1.02, 2.0]),
)
def test_a_stretch_is_the_sum_of_its_steps(
    model: tuple[str, str, int], contexts: list[int], steps: int, overlapped: bool, host_share: float
) -> None:
    """Also where the host's time covers the first steps and the growing context emerges from under it (share near 1)."""
    of = served(model[0], model[1], tp=model[2])
    windows = windows_of(of.model)
    whole, single = DecodeBatch(windows), DecodeBatch(windows)
    for batch in (whole, single):
        for number, context in enumerate(contexts):
            batch.join(number, float(context), 10_000)
    bare = replace(of.clock, host_step_s=0.0, host_sequence_s=0.0, overlapped=True)
    clock: StepClock = replace(bare, host_step_s=host_share * bare.series(whole).time(1), overlapped=overlapped)
    taken, left = 0.0, steps
    while left:
        fill = whole.steps_until_window_fills()
        stretch = left if fill is None else min(left, fill)
        taken += clock.series(whole).time(stretch)
        whole.advance(stretch)
        left -= stretch
    one_by_one = []
    for _ in range(steps):
        one_by_one.append(clock.series(single).time(1))
        single.advance(1)
    assert taken == pytest.approx(math.fsum(one_by_one), rel=1e-12)


@given(models, st.integers(1, 60), st.integers(1, 3000), st.floats(1e-6, 5.0), st.booleans())
def test_steps_within_is_the_fewest(
    model: tuple[str, str, int], sequences: int, context: int, seconds: float, overlapped: bool
) -> None:
    of = served(model[0], model[1], tp=model[2])
    clock, batch = replace(of.clock, overlapped=overlapped), decoding(model, sequences, context)
    steps = clock.series(batch).steps_within(seconds)
    assert steps >= 1
    assert clock.series(batch).time(steps) >= seconds
    assert steps == 1 or clock.series(batch).time(steps - 1) < seconds


@given(models, st.integers(1, 60), st.integers(1, 3000), st.integers(1, 2000))
def test_steps_within_the_time_of_a_stretch_are_its_steps(
    model: tuple[str, str, int], sequences: int, context: int, steps: int
) -> None:
    of = served(model[0], model[1], tp=model[2])
    batch = decoding(model, sequences, context)
    assert of.clock.series(batch).steps_within(of.clock.series(batch).time(steps)) == steps


@given(st.integers(1, 64), st.integers(10, 5000))
def test_two_stages_serve_a_batch_no_slower_than_twice_one_pass_of_half(sequences: int, context: int) -> None:
    """Half of the sequences are in each stage, so a token takes one pass of half the batch (even batches)."""
    of = served("llama-3.1-8b", "vllm:0.19.0", pp=2)
    batch = DecodeBatch(windows_of(of.model))
    for number in range(2 * sequences):
        batch.join(number, float(context), 100)
    half = exact.step(of.kernels, exact.Batch(sequences, context)).total_s
    got = of.clock.series(batch).time(1)
    assert half * (1 - TABLE_TOLERANCE) <= got <= 2 * half


# --- the batch's sums ------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 80), st.integers(0, 20)), min_size=1, max_size=25),
    st.data(),
)
def test_sums_advance_as_if_every_sequence_were_counted(
    sequences: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Sequences join, leave early and come back with more context; windows of 64 and 128 tokens fill meanwhile."""
    windows = (64.0, 128.0)
    batch = DecodeBatch(windows)
    contexts: dict[int, int] = {}
    for number, (context, steps, pause) in enumerate(sequences):
        batch.join(number, float(context), steps + 1000)
        contexts[number] = context
        for _ in range(pause):
            batch.advance(1)
            contexts = {n: c + 1 for n, c in contexts.items()}
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(contexts)))
            assert batch.leave(gone) == contexts[gone]
            away = data.draw(st.integers(0, 5))
            for _ in range(away):
                batch.advance(1)
            contexts = {n: c + away * (n != gone) for n, c in contexts.items()}
            back = data.draw(st.integers(0, 2))
            if back:
                batch.join(gone, float(contexts[gone] + back), 1000)
                contexts[gone] += back
            else:
                del contexts[gone]
        assert batch.size == len(contexts)
        assert batch.context == sum(contexts.values())
        for tokens, attended, growing in zip(windows, batch.attended, batch.growing, strict=True):
            assert attended + growing * batch.step == sum(min(c, tokens) for c in contexts.values())
            assert growing == sum(c < tokens for c in contexts.values())
        left = [w - c for w in windows for c in contexts.values() if c < w]
        assert batch.steps_until_window_fills() == (min(left) if left else None)
        assert batch.to_come == sum(end - batch.step for _, _, end in batch.joined.values())


@pytest.mark.parametrize(
    ("slots", "tokens", "filled"),
    [(1536, 2048, (512, 1024, 1536)), (1024, 8192, (512, 1024)), (9000, 1280, (512, 1024, 1280))],
)
def test_steps_are_filled_up_to_the_largest_batch_at_most(slots: int, tokens: int, filled: tuple[int, ...]) -> None:
    settings = served("llama-3.1-8b", "tensorrt-llm:1.2.0", tp=1).kernels.settings
    sizes = {"padded_batches": (512, 1024, 2048), "max_num_seqs": slots, "max_num_batched_tokens": tokens}
    assert filled_sizes(settings.model_copy(update=sizes), 1) == filled
    assert filled_sizes(settings, 1) == ()
