"""Plans and costs as a library gives them: from a question and rules, without a command line."""

from __future__ import annotations

import pickle

import pytest
from builders import ask, option, real_model

from sizing.planning.cost import Ways, cost
from sizing.planning.offers import ApiPrices
from sizing.planning.plan import plan
from sizing.planning.provision import FleetWorkload
from sizing.planning.rules import ProvisionRules
from sizing.question.question import Question

API = ApiPrices(1.0, 3.0, "API", "", "")


def question(**demand: float) -> Question:
    found = ask(real_model("llama-3.1-8b"), isl=1000, osl=200, demand=demand)
    return found.with_(gpu_types=(option("h100-sxm", 2.0),))


def test_a_plan_is_made_of_a_question_and_rules() -> None:
    found = plan(question(requests_per_s=40), ProvisionRules(spare=2), simulated=False)
    assert found.feasible and found.fleet is not None and found.unreachable is None
    (tenant,) = found.fleet.tenants
    assert found.fleet.replicas == tenant.size.base + 2
    assert found.usd_per_month == pytest.approx(found.fleet.gpus * 2.0 * 730)
    assert pickle.loads(pickle.dumps(found.fleet.pools)) == found.fleet.pools


def test_a_bill_is_made_of_a_question_and_ways_to_pay() -> None:
    found = cost(question(requests_per_s=40), Ways(api=(API,)), simulated=False)
    rented, api = found.options
    assert (rented.kind, api.kind) == ("cloud", "api")
    (pair,) = found.break_even
    assert pair.cheaper_at_this_load == min(found.options, key=lambda each: each.usd_per_1k_requests.at_load).name
    assert rented.curves[0].usd_per_unit_year > 0


def test_a_plan_over_the_budget_is_no_answer() -> None:
    asked = question(requests_per_s=40).with_(gpu_budget=1)
    found = plan([FleetWorkload("chat", asked)], ProvisionRules(spare=2), simulated=False)
    assert found.fleet is not None and not found.feasible
    assert found.gpus_over_budget == found.fleet.gpus - 1
