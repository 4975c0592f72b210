"""What `llmsize report` shows, put together: the answer, what would change it, curves of the layouts worth a look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sizing.answers import whatif
from sizing.answers.answer import Answer
from sizing.answers.curve import evaluated, marked
from sizing.answers.lines import CurveLine, Grid, Layouts, by_rate, lines
from sizing.answers.points import applying
from sizing.answers.whatif import Effect, Sized
from sizing.cli.compared import Asking, compared
from sizing.cli.estimate import Answered, answer, estimated, to_simulate, to_size
from sizing.cli.progress import Bar
from sizing.cli.workers import cores, ordered
from sizing.question.question import Question, load_data
from sizing.report.compare import Compare
from sizing.report.curve.record import CurveRecord, record
from sizing.report.page import first_metric
from sizing.report.page_record import ChangedInput, RateLine, Report, rate_line
from sizing.report.parts.limiting import unmet
from sizing.specs.workload import Tokens

MOST_LINES = 6  # of a curve, as many as there are colours and markers
LOADS = tuple(2**power for power in range(9))  # requests in flight on one replica
SEED = 0


def report(asked: Question, values: Mapping[str, Any], command: str) -> Report:
    """Return the document of a question; everything in it is sized and simulated as the options say."""
    answered = estimated(asked, load_data(), values)
    i = answered.document.inputs
    return Report(
        title=f"GPU sizing of {i['workload'] or i['model']}",
        command=command,
        simulated=not values["no_verify"],
        estimate=answered.document,
        sensitivity=tuple(_sensitivity(asked, values, answered)),
        rates=() if _is_closed(asked) else tuple(_rates(asked, values, answered)),
        curve=_curve(asked, values, answered) if _is_closed(asked) else None,
        comparison=_comparison(asked, values),
    )


def _sensitivity(asked: Question, values: Mapping[str, Any], answered: Answered) -> Iterator[ChangedInput]:
    """Yield what each changed input makes of the answer, sized as the answer itself was."""
    data, simulates = load_data(), to_simulate(asked, values) is not None

    def size(question: Question, tokens: Tokens) -> Sized:
        outcome = answer(question, data, tokens if simulates else None)
        return Sized(outcome.answer, None if outcome.answer is not None else unmet(outcome, ()).detail)

    changes = list(whatif.changes(to_size(asked, values), asked.origin.workload, data.defaults))
    found = answered.document.deployment
    with Bar("Changing inputs", len(changes)) as bar:
        for done, effect in enumerate(whatif.effects(changes, size), start=1):
            yield _effect(effect, found.gpus if found is not None else None)
            bar(done)


def _effect(effect: Effect, gpus: int | None) -> ChangedInput:
    change, (best, reason) = effect
    return ChangedInput(
        what=change.what,
        share=change.share,
        value=change.value,
        unit=change.unit,
        feasible=best is not None,
        gpu=best.pool.replica.gpu_type.name if best else None,
        weight_precision=best.pool.replica.plan.weight_format if best else None,
        gpus=best.gpus if best else None,
        extra_gpus=best.gpus - gpus if best and gpus is not None else None,
        layout=f"{best.pool.count} x {best.pool.replica.layout}" if best else None,
        requests_per_s=best.requests_per_s if best else None,
        usd_per_hour=best.usd_per_hour if best else None,
        reason=reason,
    )


def _comparison(asked: Question, values: Mapping[str, Any]) -> Compare | None:
    """Return each GPU type and precision at its best; None where there is one alone, or no demand to serve."""
    request = asked
    demanded = request.target.requests_per_s is not None or request.target.concurrency is not None
    if not demanded or len(asked.space.gpu_types) * len(asked.space.precisions) < 2:
        return None
    return compared(Asking(asked, values, request.rules.objective, None, "html", cores()))


def _is_closed(asked: Question) -> bool:
    """Tell whether the demand is a closed loop: requests in flight, or offline work with every slot kept full."""
    target = asked.target
    return target.concurrency is not None or (target.offline and target.requests_per_s is None)


def _rates(asked: Question, values: Mapping[str, Any], answered: Answered) -> Iterator[RateLine]:
    """Yield latency by rate of the best layout of each GPU type and precision, the answer's with its own load."""
    request, tokens, best = to_size(asked, values), to_simulate(asked, values), answered.outcome.best
    layouts = _best(answered.outcome.answers)
    with Bar("Simulating", len(layouts)) as bar:
        for done, one in enumerate(layouts, start=1):
            is_answer = one is best and answered.document.feasible
            yield rate_line(by_rate(one, request, tokens, is_answer=is_answer))
            bar(done)


def _curve(asked: Question, values: Mapping[str, Any], answered: Answered) -> CurveRecord | None:
    """Return the curve of the best layout of each GPU type and precision; None where none serves the demand."""
    request = asked.with_(requests_per_s=None, concurrency=None, gpu_budget=None)
    found = [line for best in _best(answered.outcome.answers) for line in _lines(best, request)]
    if not found:
        return None
    layouts = [line.layout for line in found if line.layout is not None]
    sizes = (tuple(sorted({getattr(layout, name) for layout in layouts})) for name in Layouts._fields)
    grid = Grid(Layouts(*sizes), LOADS, simulated=not values["no_verify"], seed=SEED)
    with Bar("Simulating") as bar:
        drawn = evaluated(found, request, grid, each=partial(ordered, jobs=cores()), progress=bar)
    limits = applying(request)
    curve = marked(drawn, limits, first_metric(limits, asked.origin.workload.mode))
    return record(curve, request, grid)


def _best(ranked: Sequence[Answer]) -> list[Answer]:
    """Return the best layout of each GPU type and precision, best first."""
    firsts: dict[tuple[str, str], Answer] = {}
    for one in ranked:
        firsts.setdefault((one.pool.replica.gpu_type.id, one.pool.replica.plan.weight_format), one)
    return list(firsts.values())[:MOST_LINES]


def _lines(best: Answer, question: Question) -> Iterator[CurveLine]:
    """Yield the line of a layout that the search found."""
    chosen = best.pool.replica
    sizes = Layouts((chosen.layout.tp,), (chosen.layout.pp,))
    alone = question.with_(gpu_types=(chosen.gpu_type,), precisions=(chosen.precision,))
    for line in lines(alone, Grid(sizes, LOADS), load_data()):
        if line.parts and line.layout == chosen.layout:
            yield line
