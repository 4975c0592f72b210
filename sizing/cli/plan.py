"""`llmsize plan`: from users and peaks to GPUs over time: reserves, growth, a cloud that follows the load, a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import (
    DEMAND_OPTIONS,
    FORMAT_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    PEAK_OPTIONS,
    PLAN_OPTIONS,
    PLANNING_OPTIONS,
    QUIET_OPTIONS,
    SERVING_OPTIONS,
    VERIFY_OPTIONS,
    takes,
)

if TYPE_CHECKING:
    from sizing.cli.planned import PlanQuestion
    from sizing.cli.resolve import Prepared
    from sizing.planning.fleet import Sharing
    from sizing.planning.size import Rules
    from sizing.report.documents_plan import Move, Plan, Uncertainty
    from sizing.report.plan import Asking, WorkloadAnswer

WORKLOAD_OPTIONS = (
    *MODEL_OPTIONS,
    *DEMAND_OPTIONS,
    *PEAK_OPTIONS,
    *LIMIT_OPTIONS,
    *SERVING_OPTIONS,
    *OPTIMISATION_OPTIONS,
    *(option for option in PLANNING_OPTIONS if option.name != "conservative"),  # --uncertain says how sure it is
    *(option for option in PLAN_OPTIONS if option.field),
)
RULE_OPTIONS = tuple(option for option in PLAN_OPTIONS if not option.field)
SEED = 0


@takes((*WORKLOAD_OPTIONS, *RULE_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *QUIET_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload or fleet file, or a ready one's name (llmsize workloads lists both).")
    ] = None,
    **values: Any,
) -> None:
    """Plan capacity: GPUs and nodes for the peak with reserves, by the hour, as demand grows, for a fleet, and how sure.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.collecting import Part
    from sizing.cli.output import chosen_format, complain, picture_form, print_text, write, write_file
    from sizing.cli.planned import ask
    from sizing.cli.reading import Reader

    output = Part(lambda: chosen_format(values))

    def read_files() -> Any:
        read = Reader(values, [])
        found = read.picture(), read.seed(SEED)
        if values["seed"] is not None and not values["uncertain"]:
            read.fault("has no meaning without draws", "--seed", "with --uncertain")
        if values["price_uncertainty"] is not None and not values["uncertain"]:
            read.fault("has no meaning without draws", "--price-uncertainty", "with --uncertain")
        read.check()
        return found

    files = Part(read_files)
    asked = ask(workload, WORKLOAD_OPTIONS, RULE_OPTIONS, {**values, "workload": workload}, output, files)
    plot, seed = files.value
    document = _planned(asked, seed, uncertain=values["uncertain"], verified=not values["no_verify"])
    if not values["quiet"]:
        write(document, output.value)
    elif document.gpus is not None and document.feasible:
        print_text(str(document.gpus))
    else:
        complain(f"infeasible: {'; '.join(document.problems)}")
    if plot is not None and document.gpus is None:
        complain(f"{plot}: not drawn, as there is no plan")
    elif plot is not None:
        from sizing.report.plot_plan import draw

        write_file(plot, "--plot", draw(document, picture_form(plot)))
    if not document.feasible:
        raise typer.Exit(1)


def _planned(asked: PlanQuestion, seed: int, *, uncertain: bool, verified: bool) -> Plan:
    from sizing.planning.size import UnreachableError
    from sizing.report.plan import Asking, build

    answers = tuple(
        _answer(part.name, part.question, part.pool, asked.rules, verified=verified) for part in asked.asked
    )
    asking = Asking(asked.title, asked.is_fleet, answers, asked.rules, asked.scaling, asked.spec.cloud, _stated(asked))
    unmet = [(answer, part.question) for answer, part in zip(answers, asked.asked, strict=True) if answer.best is None]
    if unmet:
        helping = [text for pair in unmet for text in _suggestions(*pair, verified=verified)]
        return build(asking, problems=[_problem(answer) for answer, _ in unmet], suggestions=helping)
    try:
        draws = _draws(asking, seed) if uncertain else None
        moves = [_move(asking, name, question, verified=verified) for name, question in asked.moves]
        document = build(asking, moves=moves, uncertainty=draws)
    except UnreachableError as error:
        return build(asking, problems=[str(error)], suggestions=["a lower --availability, or better nodes"])
    budget = asked.asked[0].question.question.rules.gpu_budget
    if budget is not None and document.gpus is not None and document.gpus > budget:
        over = f"the plan takes {document.gpus:,} GPUs, {document.gpus - budget:,} more than the budget of {budget:,}"
        return document._replace(feasible=False, problems=(over,))
    return document


def _stated(asked: PlanQuestion) -> dict[str, Any]:
    """Return the rules of the plan as resolved, for its inputs."""
    rules, spec = asked.rules, asked.spec
    return {
        "spare": rules.spare,
        "availability": rules.availability,
        "node_availability": rules.unit_availability,
        "mtbf_hours": spec.mtbf,
        "mttr_hours": spec.mttr,
        "failures": "node" if rules.by_node else "replica",
        "maintenance": rules.maintenance,
        "growth_per_month": rules.growth_per_month,
        "from": rules.start.isoformat() if rules.growth_per_month is not None else None,
        "until": rules.until.isoformat() if rules.until is not None else None,
        "cloud": spec.cloud,
        "min_replicas": rules.min_replicas,
        "spot": rules.spot_share,
    }


def _answer(name: str, question: Prepared, pool: Sharing, rules: Rules, *, verified: bool) -> WorkloadAnswer:
    """Return what the search finds for a workload, confirmed by simulation: as `llmsize estimate` does.

    The layout is that which takes the fewest GPUs with its reserves, in a shared pool too: that has one reserve for all, as large
    as the largest of them.
    """
    from dataclasses import replace

    from sizing.answers.search import search
    from sizing.planning.size import order_with
    from sizing.report.plan import WorkloadAnswer

    order = order_with(rules)
    outcome = search(question.question, question.options, question.precisions, question.data)
    outcome = replace(outcome, answers=tuple(sorted(outcome.answers, key=lambda one: order(one, outcome.question))))
    if verified and outcome.best is not None:
        from sizing.answers.verify import verify

        outcome = verify(outcome, question.asked.workload.tokens, question.data, order=order)
    return WorkloadAnswer(name, question.asked, outcome, pool)


def _problem(answer: WorkloadAnswer) -> str:
    from sizing.report.parts.limiting import unmet

    return f"{answer.name}: {unmet(answer.outcome, ()).detail}"


def _suggestions(answer: WorkloadAnswer, question: Prepared, *, verified: bool) -> list[str]:
    """Return the changes that would let a workload be served, each found by searching again, as `llmsize estimate` does."""
    from sizing.cli.estimate import suggested

    found = suggested(answer.outcome, question, {"no_verify": not verified})
    return [f"{answer.name}: {one.change}: {one.gpus} x {one.gpu} ({one.layout})" for one in found]


def _move(asking: Asking, name: str, question: Prepared, *, verified: bool) -> Move:
    """Return what changes where one workload runs on another type of GPU."""
    from sizing.planning.fleet import pools_of
    from sizing.report.documents_plan import Move
    from sizing.report.plan import member_of, price_of, usd_per_month
    from sizing.report.plan_cloud import rented

    now = next(answer for answer in asking.answers if answer.name == name)
    moved = _answer(name, question, now.pool, asking.rules, verified=verified)

    def totals(answers: Sequence[WorkloadAnswer]) -> tuple[int, int, float | None]:
        pools = pools_of([member_of(answer, asking.rules) for answer in answers], asking.rules)
        held = rented(asking._replace(answers=tuple(answers)), pools)
        prices = {a.best.pool.replica.gpu_type.id: price_of(a, held) for a in answers if a.best is not None}
        return sum(pool.gpus for pool in pools), sum(pool.nodes for pool in pools), usd_per_month(pools, prices, held)

    usd_now = totals(asking.answers)[2]
    assert now.best is not None
    source, target = now.best.pool.replica.gpu_type.name, ", ".join(option.name for option in question.options)
    if moved.best is None:
        return Move(name, source, target, False, _problem(moved), None, None, None, None, usd_now)
    answers = [moved if answer is now else answer for answer in asking.answers]
    gpus, nodes, usd = totals(answers)
    size = member_of(moved, asking.rules).size
    layout = moved.best.pool.replica.layout
    return Move(
        name, source, moved.best.pool.replica.gpu_type.name, True, f"{size.replicas} replicas x {layout}", size.gpus, gpus,
        nodes, usd, usd_now,
    )  # fmt: skip


def _draws(asking: Asking, seed: int) -> Uncertainty:
    """Return GPUs and cost over draws of what is uncertain."""
    from sizing.planning import uncertainty
    from sizing.planning.fleet import pools_of
    from sizing.report.plan import member_of
    from sizing.report.plan_cloud import rented
    from sizing.report.plan_uncertainty import build, uncertain_of

    held = rented(asking, pools_of([member_of(answer, asking.rules) for answer in asking.answers], asking.rules))
    fleet = [uncertain_of(answer, asking.rules, held) for answer in asking.answers]
    return build(fleet, uncertainty.simulate(fleet, asking.rules, seed=seed))
