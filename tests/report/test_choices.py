"""What a screen offers a buyer beside the answer: other layouts, prices at one provider, a measurement before a sure count."""

from __future__ import annotations

from typing import Any

import pytest

import sizing
from sizing.answers.estimate import by_prediction
from sizing.answers.whatif import changes
from sizing.catalog import shelf
from sizing.model.architecture import Layout
from sizing.report.compare import CompareCandidate, raised
from sizing.report.parts.evidence import Evidence, SureOf
from sizing.report.parts.layouts import Alternative, instead, is_taken, other_types
from sizing.report.parts.prices import AtProvider, PriceOrder, price_order
from sizing.specs.data import Advice

ADVICE = shelf.only(Advice)


def layout(gpus: int, itl_ms: float, sizes: Layout, gpu: str = "H200", **more: Any) -> Alternative:
    return Alternative(
        gpu,
        "fp8",
        sizes,
        gpus // sizes.gpus,
        gpus,
        1.0,
        10 * itl_ms,
        itl_ms,
        100 * itl_ms,
        5.0 * gpus,
        1.0,
        "itl",
        **more,
    )


def test_an_alternative_is_shown_only_if_a_buyer_might_take_it() -> None:
    best = layout(8, 40.0, Layout(2))
    assert is_taken(layout(16, 20.0, Layout(8)), best)
    assert is_taken(layout(8, 45.0, Layout(1)), best), "more replicas at the same cost"
    assert not is_taken(layout(16, 45.0, Layout(1)), best), "more GPUs, and every latency is longer"
    assert not is_taken(layout(int(8 * ADVICE.most_gpus) + 8, 20.0, Layout(8)), best), "many times the GPUs"
    assert not is_taken(layout(6, 50.0, Layout(1, pp=3)), best), "two GPUs of each node stay unused"
    assert is_taken(layout(40, 50.0, Layout(4, pp=5)), layout(48, 40.0, Layout(8, pp=2))), (
        "two replicas fill five nodes"
    )
    assert is_taken(layout(9, 20.0, Layout(1, pp=3)), layout(6, 40.0, Layout(1, pp=3))), "as in the answer"
    assert is_taken(layout(110, 50.0, Layout(1), gpu="L40S"), best), "another GPU type that was asked for"
    shown = [line.text for line in instead(best, [layout(110, 50.0, Layout(1)), layout(16, 20.0, Layout(8))])]
    assert len(shown) == 1 and "2 x TP8, $80.00/h" in shown[0]


def test_without_a_demand_other_layouts_have_the_rate_that_they_serve() -> None:
    """Fewer GPUs at a lower cost are no bargain where they serve less."""
    best, fewer = layout(11, 40.0, Layout(1)), layout(8, 30.0, Layout(4))
    (line,) = instead(best, [fewer], demanded=False)
    assert "about 8 GPUs = 2 x TP4, 8/s, $40.00/h" in line.text
    types = [layout(8, 30.0, Layout(1), gpu=gpu) for gpu in ("B200", "L40S")]
    (line,) = other_types(best, types, (), demanded=False)
    assert line.text == "about 8 x B200 $40.00/h for 8/s, 8 x L40S $40.00/h for 8/s"
    assert "/s" not in next(other_types(best, types, ())).text


@pytest.mark.parametrize(("gpus", "fills"), [(1, True), (3, False), (4, True), (6, False), (12, False), (16, True)])
def test_which_replicas_fill_nodes(gpus: int, fills: bool) -> None:
    assert ADVICE.fills_nodes(gpus) is fills


def test_prices_of_different_providers_name_those_that_offer_both() -> None:
    """Typical prices of two GPU types are of different providers; each provider of both has an order of its own."""
    question = sizing.ask(model="llama-3.1-70b", gpu=["h200-sxm", "b200"], isl=1000, osl=300, rps=20)
    outcome = by_prediction(question)
    found = price_order(outcome.answers, question)
    assert found is not None and set(found.typical) == {"h200-sxm", "b200"}
    assert all(set(each.usd_per_hour) == {"h200-sxm", "b200"} for each in found.providers) and found.providers
    for each in found.providers:
        assert list(each.usd_per_hour.values()) == sorted(each.usd_per_hour.values())
    orders = {next(iter(each.usd_per_hour)) for each in found.providers}
    said = found.line().text
    assert said.startswith("of different providers") and all(name in said for name in orders)
    one = [each for each in outcome.answers if each.pool.replica.gpu_type.id == "b200"]
    assert price_order(one, question) is None, "one GPU type has nothing to compare"


def test_stated_prices_are_of_one_source() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu=["h200-sxm", "b200"], isl=100, osl=30, rps=1, price=3.0)
    assert price_order(by_prediction(question).answers, question) is None


def test_no_provider_of_both_is_said() -> None:
    assert "none is known that offers both" in PriceOrder(("mi300x", "b200"), ()).line().text


def said(gpus: int, gpus_sure: int | None, *, own: bool = False, without: int | None = None) -> str:
    found = Evidence(3, 0.6, "over 10 % of them miss the limits" if gpus_sure is None else None, None, own=own)
    known = SureOf(gpus, gpus_sure, 0.9, found, limited=True, by_rate=True)
    return " ".join(
        line.text for line in known.lines(without="" if without is None else f"{without}", gpus_without=without)
    )


def test_a_sure_count_that_nobody_can_act_on_says_what_to_do() -> None:
    most = int(ADVICE.measure_first * 12)
    assert f", {most} in 90 % or more" in said(12, most) and "measure" not in said(12, most)
    far = said(12, most + 1)
    assert "measure one replica first (llmsize deploy --benchmark, import, calibrate)" in far
    assert f"{most + 1}" not in far and "12 GPUs keep the limits in 60 %" in far
    assert "measure one replica first" in said(12, None)
    assert "measure" not in said(12, most + 1, own=True), "own runs are measured"


def test_a_confidence_sizes_as_asked_and_says_the_same() -> None:
    text = said(88, 88, without=12)
    assert (
        text.startswith("88 GPUs keep the limits in 90 % of")
        and "12 without --confidence" in text
        and "measure one replica first" in text
    )
    assert "measure" not in said(24, 24, without=12)


def test_the_price_at_which_another_gpu_type_costs_less_is_named() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm,h200-sxm", isl=1000, osl=200, rps=5)
    answers = by_prediction(question).answers
    order = price_order(answers, question)
    assert order is not None and order.turn is not None
    first, then = (next(a for a in answers if a.pool.replica.gpu_type.id == id_) for id_ in order.typical)
    assert order.turn.usd_per_gpu_hour * first.gpus == pytest.approx(then.usd_per_hour)
    assert order.turn.lowest <= order.turn.typical <= min(order.turn.highest, order.turn.usd_per_gpu_hour)
    at = f"above ${order.turn.usd_per_gpu_hour:.2f}"
    assert [at in line.text for line in (order.line(), *order.turning())] == [order.turn.near, True]
    far = order._replace(turn=order.turn._replace(usd_per_gpu_hour=order.turn.highest + 0.01))
    assert "costs less" not in far.line().text


def test_a_next_type_that_no_provider_offers_beside_the_first_is_named() -> None:
    at = AtProvider("aws", {"b200": 40.0, "h100-sxm": 86.0})
    assert "none offers b200 and mi300x" in PriceOrder(("b200", "mi300x", "h100-sxm"), (at,)).line().text
    assert "none offers" not in PriceOrder(("b200", "h100-sxm", "mi300x"), (at,)).line().text


def test_a_count_above_the_prediction_says_what_the_prediction_alone_takes() -> None:
    plain = CompareCandidate(
        "MI300X", "mi300x", "fp8", gpus=32, usd_per_hour=64.0, evidence=Evidence(4, 0.5, None, None)
    )
    assert not list(raised([plain, plain._replace(evidence=None)]))
    (line,) = raised([plain._replace(evidence=Evidence(4, 0.5, None, None, 16, "MI300X"))])
    assert "16 GPUs by the prediction alone, $32.00/h; 32 are" in line.text


def test_the_price_of_the_answers_gpu_type_is_an_input_like_others() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm,h200-sxm", isl=1000, osl=200, rps=5)
    prices = {each.id: each.usd_per_gpu_hour for each in question.space.gpu_types}
    found = [each for each in changes(question, "h100-sxm") if each.what.startswith("price")]
    assert [each.share for each in found] == [-ADVICE.varied, ADVICE.varied]
    for each in found:
        assert each.question is not None
        now = {of.id: of.usd_per_gpu_hour for of in each.question.space.gpu_types}
        assert now == {**prices, "h100-sxm": each.value}
        assert each.value == pytest.approx((prices["h100-sxm"] or 0) * (1 + each.share))
