"""Answer a question: search, confirm by simulation, and find the changes that would help.

Every suggested change is found by a new search with that one change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sizing.answers import advice
from sizing.answers.answer import (
    TIES,
    Answer,
    ConfidentAnswer,
    Order,
    Outcome,
    Pool,
    Suggestion,
    is_alike,
    layout_of,
    preference,
    preferring,
    spent,
)
from sizing.answers.confidence import Said, evenly, has_odds, sizes_said
from sizing.answers.search import REACHES, at_even_odds, recounted, search
from sizing.catalog.prices import typical_price
from sizing.catalog.profiles import load_gpu
from sizing.model.architecture import SIZES
from sizing.question.question import Question, SeparatePools, load_data
from sizing.replica.replica import Refusal
from sizing.specs.bands import EVEN, USUAL, Confidence
from sizing.specs.data import Data
from sizing.specs.gpu import GpuType

MOST_OF_ONE = 0.5  # unrequested separate pools are shown only if they need at most this share of the GPUs


def estimate(question: Question, data: Data | None = None, *, simulated: bool = True, relaxed: bool = True) -> Outcome:
    """The answers to a question, confirmed by simulation where `simulated`, with changes that would help.

    With `relaxed`, a looser limit that saves GPUs is searched for. The other layouts also have at least even odds, where
    similar published runs are known. `separate_pools` of the outcome is set where the question asks for separate pools, or
    where experts span nodes and separate pools need at most half of the GPUs.

    >>> from sizing import ask
    >>> outcome = estimate(ask("chat", gpu="h100-sxm"))
    >>> outcome.best.gpus, outcome.verified
    (8, True)
    """
    data = data or load_data()
    whole = question.with_(pools=None)
    outcome = answer(whole, data, simulated=simulated)
    feasible, asked = outcome.answer is not None, outcome
    if outcome.even or has_odds(outcome):  # a looser limit and pipelines need at least even odds too
        asked = replace(outcome, question=evenly(outcome.question, data))
    relaxation = advice.relaxation(asked, data, simulated=simulated) if feasible and relaxed else None
    return replace(
        _at_even_odds(with_cheaper(outcome, asked.question, data), data),
        relaxation=relaxation,
        beyond=advice.beyond(asked) if feasible and relaxed and relaxation is None else None,
        suggestions=() if feasible else suggestions(outcome, data, simulated=simulated),
        predicted=_predicted(outcome, whole, data, simulated)
        if question.target.confidence is not None
        else outcome.predicted,
        separate_pools=_separate(question, outcome, data, simulated),
    )


def with_cheaper(outcome: Outcome, question: Question, data: Data) -> Outcome:
    """Add all layouts on the answer's GPU type that cost less than the answer, and update `surer`.

    These are what a smaller GPU budget would take. The added layouts are sized by the closed form. Where other layouts suffice, a pipeline becomes the answer only if the
    question asks for it, or if the GPU budget leaves no other choice.
    """
    best, objective = outcome.answer, question.rules.objective
    if best is None or question.space.layouts != REACHES[0] or outcome.question.target.amount is None:
        return outcome
    own, rest = best.pool.replica, outcome.answers[1:]
    known = {layout_of(each.pool.replica) for each in outcome.answers} | {layout_of(each) for each in outcome.refusals}
    wide = question.with_(gpu_types=(own.gpu_type,), precisions=(own.precision,), layouts=REACHES[-1])
    others = search(wide, data, known=known).answers
    less = [each for each in others if spent(each, objective) < spent(best, objective)]
    ranked = sorted([*less, *rest], key=lambda each: preference(each, question))
    (surer,) = _surer([(outcome, [*_of_other_types(outcome), *others])], data)
    return replace(outcome, answers=(best, *ranked), surer=surer)


def _at_even_odds(outcome: Outcome, data: Data) -> Outcome:
    """Give the layouts at least even odds where runs like theirs are known; reject those that no size gives them.

    The answer stays as it is, and so does a size that no simulation confirmed.
    """
    question = outcome.question
    if question.target.confidence is not None or outcome.even or question.target.amount is None or data.runs is None:
        return outcome
    kept = 0 if outcome.passed and not outcome.within_budget else 1
    pools = [each.pool for each in outcome.answers[kept:]]
    sizes = at_even_odds(pools, question, evenly(question, data), data)
    others = [
        each if size is each.pool else Answer((size,))
        for each, size in zip(outcome.answers[kept:], sizes, strict=True)
        if isinstance(size, Pool)
    ]
    ranked = sorted(others, key=lambda each: preference(each, question))
    refusals = (*outcome.refusals, *(size for size in sizes if isinstance(size, Refusal)))
    return replace(outcome, answers=(*outcome.answers[:kept], *ranked), refusals=refusals)


def _separate(question: Question, whole: Outcome, data: Data, simulated: bool) -> Outcome | None:
    """The outcome of separate pools, where they are asked for or need far fewer GPUs."""
    if question.space.pools is not None:
        return answer(question, data, simulated=simulated)
    if whole.answer is None or not _over_nodes(whole.answer, question):
        return None
    pools = SeparatePools.of_any(question.space.gpu_types)
    found = answer(question.with_(pools=pools), data, simulated=simulated)
    return found if found.answer is not None and found.answer.gpus <= MOST_OF_ONE * whole.answer.gpus else None


def _over_nodes(found: Answer, question: Question) -> bool:
    """Whether a replica of an answer spans nodes with attention ranks that share experts, and pools may be tried.

    A prompt on one rank delays the decoding sequences of all ranks: the more ranks, the longer.
    """
    service, target, replica = question.service, question.target, found.pool.replica
    free = not any(getattr(service.serving, name) for name in SIZES)
    rated = target.requests_per_s is not None and target.concurrency is None and target.confidence is None
    decodes = service.osl > 1 and not service.extras.cached.varies
    spread = replica.layout.dp > 1 and replica.layout.gpus > replica.gpu_type.gpu.datasheet.island_gpus
    return free and rated and decodes and spread


def answer(
    question: Question, data: Data, *, simulated: bool = True, order: Order = preference, sure: bool = True
) -> Outcome:
    """The answers to a question in `order`, the first confirmed by simulation where `simulated`.

    Where the question asks for separate pools, the answers have them. Only with `sure` are sure sizes found.
    """
    steps = Steps.of(data, simulated=simulated, order=order)
    return with_odds([question], data, steps, sure=sure)[0]


def with_sure(found: tuple[Question, Outcome], data: Data, *, simulated: bool = True) -> Outcome:
    """The outcome of `answer` for a question, found without its sure size, with it.

    Unless it is `simulated`, it follows from the capacities of the outcome, which its own simulation corrected.
    """
    (question, outcome), steps = found, Steps.of(data, simulated=simulated)
    asked = evenly(question, data) if outcome.even else question
    return _with_sure(steps.searched([asked]) if simulated else [outcome], [outcome], data, steps)[0]


def by_prediction(question: Question, data: Data, *, simulated: bool, order: Order = preference) -> Outcome:
    """The answers by prediction alone; published runs change them only where the question asks for a confidence."""
    return Steps.of(data, simulated=simulated, order=order).answered([question])[1][0]


def _searched(question: Question, data: Data) -> Outcome:
    if question.space.pools is None:
        return search(question, data)
    from sizing.answers import pools  # loaded where they are asked for

    return pools.search(question, data)


def _ranked(outcome: Outcome, order: Order) -> Outcome:
    if order is preference:
        return outcome
    return replace(outcome, answers=tuple(sorted(outcome.answers, key=lambda found: order(found, outcome.question))))


@dataclass(frozen=True, slots=True)
class Steps:
    """How outcomes are found: `searched` by the closed form, several questions at once, and one `confirmed` in an order.

    `confirmed` takes whether the first answer is shown under its own demand; a sure size need not be.
    """

    searched: Callable[[Sequence[Question]], list[Outcome]]
    confirmed: Callable[[Outcome, Order, bool], Outcome]
    order: Order = preference

    @classmethod
    def of(cls, data: Data, *, simulated: bool, order: Order = preference) -> Steps:
        """The steps of a single question."""

        def confirm(outcome: Outcome, order: Order, shows: bool) -> Outcome:
            ranked = _ranked(outcome, order)
            return confirmed(ranked, data, order=order, shows=shows) if simulated else ranked

        return cls(lambda questions: [_searched(each, data) for each in questions], confirm, order)

    def answered(self, questions: Sequence[Question]) -> tuple[list[Outcome], list[Outcome]]:
        """The outcomes of questions by the closed form, and confirmed."""
        found = self.searched(questions)
        return found, [self.confirmed(each, self.order, True) for each in found]


# --- by published runs ------------------------------------------------------------------------------------------------


def with_odds(questions: Sequence[Question], data: Data, steps: Steps, *, sure: bool = True) -> list[Outcome]:
    """The outcomes of questions with at least even odds and, where `sure`, their sure sizes.

    Where fewer than half of the similar published runs would keep demand and limits, the steps are taken again with a
    confidence of 50 %.
    """
    searched, found = steps.answered(questions)
    odd = [number for number, chance in _chances(found, data).items() if chance < EVEN]
    if odd:
        for number, *even in zip(
            odd, *steps.answered([evenly(questions[number], data) for number in odd]), strict=True
        ):
            searched[number], confirmed_ = even
            plain = confirmed_.question.with_(confidence=None)
            found[number] = replace(confirmed_, question=plain, even=True, predicted=found[number].answer)
    return _with_sure(searched, found, data, steps) if sure else found


def _chances(found: Sequence[Outcome], data: Data) -> dict[int, float]:
    """The share of similar published runs that keep demand and limits, by the number of each plain outcome that has one."""
    plain = [n for n, each in enumerate(found) if each.answer is not None and each.question.target.confidence is None]
    said = [Said(answer, found[n].question) for n in plain if (answer := found[n].answer) is not None]
    sizes = zip(plain, sizes_said(said, data.runs), strict=True)
    return {number: size.chance for number, size in sizes if size.chance is not None}


def suggestions(outcome: Outcome, data: Data, *, simulated: bool) -> tuple[Suggestion, ...]:
    """The single changes that would make an infeasible question feasible, by few simulations and with at least even odds."""

    def confirm(found: Outcome, order: Order, shows: bool) -> Outcome:
        return advice.confirmed_soon(found, data, simulated)

    steps = Steps(lambda asked: [search(each, data) for each in asked], confirm)
    asked = {each.id for each in outcome.question.space.gpu_types}
    others = tuple(_typical(id_) for id_ in data.defaults.gpus_compared if id_ not in asked)
    return advice.suggestions(
        outcome, lambda question: with_odds([question], data, steps, sure=False)[0].answer, others
    )


def _typical(gpu_id: str) -> GpuType:
    """A GPU type of the catalogue with its typical price."""
    found = load_gpu(gpu_id)
    return GpuType(found.id, found.spec, *typical_price(found.spec))


def _with_sure(searched: Sequence[Outcome], found: Sequence[Outcome], data: Data, steps: Steps) -> list[Outcome]:
    """The outcomes with the sure sizes of their answers, and with another answer whose sure size is cheaper.

    Among layouts of equal size and cost, the one with the smallest sure size becomes the answer.
    """
    done = list(found)
    some = [number for number, each in enumerate(found) if each.answer is not None]
    sizes = surely([(searched[number], found[number]) for number in some], data, steps)
    for number, sure in zip(some, sizes, strict=True):
        each, best = found[number], found[number].answer
        assert best is not None
        if sure is not None and not is_alike(sure, best):
            each = _with_tie(searched[number], each, sure, steps)
        done[number] = replace(each, surely=sure)
    said = [
        Said(answer, done[number].question, done[number].surely) for number in some if (answer := done[number].answer)
    ]
    for number, size in zip(some, sizes_said(said, data.runs), strict=True):
        done[number] = replace(done[number], sure=size)
    others = [(done[number], _of_other_types(done[number])) for number in some]
    for number, surer in zip(some, _surer(others, data), strict=True):
        done[number] = replace(done[number], surer=surer)
    return done


def _with_tie(searched: Outcome, found: Outcome, sure: Answer, steps: Steps) -> Outcome:
    """The outcome whose answer has the layout of the sure size, where that takes no more than the answer; else as it is."""
    best, question = found.answers[0], found.question

    def size(of: Answer) -> tuple[float, ...]:
        return steps.order(of, question)[:-TIES]

    if not any(is_alike(each, sure) and size(each) <= size(best) for each in searched.answers):
        return found
    again = steps.confirmed(searched, preferring(sure, steps.order), True)
    if again.answer is None or size(again.answer) != size(best):
        return found
    return replace(again, question=found.question, even=found.even, predicted=found.predicted)


def surely(
    asked: Sequence[tuple[Outcome, Outcome]], data: Data, steps: Steps, share: float = USUAL
) -> list[Answer | None]:
    """For the answer of each outcome the sure size on its GPU type: by the closed form and, where `steps` do, by simulation.

    This is the answer to the question with a confidence of `share`; an outcome with a confidence is sure itself. `asked` has each
    outcome by the closed form alone too. None where no published runs are like it, or no size is sure. A sure size is no
    smaller than the answer.
    """
    known = sizes_said([Said(found.answers[0], found.question) for _, found in asked], data.runs)
    sizes: list[Answer | None] = [
        None if size.chance is None else found.answers[0] for size, (_, found) in zip(known, asked, strict=True)
    ]
    plain = [n for n, size in enumerate(sizes) if size is not None and asked[n][1].question.target.confidence is None]
    cautious = [_surely_asked(asked[number][1], data, share) for number in plain]
    layouts = [_layouts(*asked[number]) for number in plain]
    firsts = recounted([(own[:1], question) for own, question in zip(layouts, cautious, strict=True)])
    below = [_below(own[1:], first, question) for own, first, question in zip(layouts, firsts, cautious, strict=True)]
    others = recounted(list(zip(below, cautious, strict=True)))
    for number, own, first, rest in zip(plain, layouts, firsts, others, strict=True):
        best = asked[number][1].answers[0]
        sure = _sure_of(best, own, (first, rest), steps)
        sizes[number] = best if sure is not None and sure.gpus < best.gpus else sure
    return sizes


def _sure_of(best: Answer, layouts: Sequence[Answer], sized: tuple[Outcome, Outcome], steps: Steps) -> Answer | None:
    """The sure size of the GPU type of an answer, from its own layout's (`sized`, first) and those that may need less (second).

    All other `layouts` are tried too where a simulation confirms none of these, or one that some of the others may come before;
    those of a wider search are tried where none is sure.
    """
    first, rest = sized
    if first.best is not None and rest.best is None and _is_covered(first.best, best, first.question):
        return first.best
    order = preferring(best, steps.order)
    found = replace(first, answers=(*first.answers, *rest.answers))
    sure = steps.confirmed(_ranked(found, order), order, False).confirmed if found.best is not None else None
    if sure is not None and (first.best is None or sure.gpus <= first.best.gpus):
        return sure
    (found,) = recounted([(layouts, first.question)])
    if sure is not None and not _come_before(sure, found, order):
        return sure
    if found.best is None:
        (found,) = steps.searched([first.question])
    return steps.confirmed(_ranked(found, order), order, False).confirmed


def _come_before(sure: Answer, found: Outcome, order: Order) -> bool:
    """Whether an answer by the closed form, of another layout than the sure size, comes before it in an order."""
    bound = order(sure, found.question)
    return any(order(each, found.question) < bound for each in found.answers if not is_alike(each, sure))


def _is_covered(sure: Answer, plain: Answer, question: Question) -> bool:
    """Whether the simulation of the answer is one of the sure size too: far from every limit, at no lighter load of a replica."""
    amount = question.target.amount
    if plain.run is None or amount is None:
        return False
    from sizing.answers.verify import is_clear  # loaded already, as there is a run

    load = amount * (1 + question.rules.headroom) * sure.pool.margin / sure.pool.count
    return load <= amount / plain.pool.count and is_clear(plain.run, question.target.limits)


def _surely_asked(found: Outcome, data: Data, share: float = USUAL) -> Question:
    """The question of an outcome with a confidence, on the GPU type of its answer, without a budget."""
    assert data.runs is not None
    types = (found.answers[0].pool.replica.gpu_type,)
    return found.question.with_(confidence=Confidence(share, data.runs), gpu_types=types, gpu_budget=None)


def _layouts(searched: Outcome, found: Outcome) -> list[Answer]:
    """The layouts on the answer's GPU type by the closed form, the answer's own first."""
    best = found.answers[0]
    own = [each for each in searched.answers if is_alike(each, best)]
    known = searched.answers if own else found.answers  # further layouts were tried, where a simulation confirmed none
    others = [each for each in known if _type_of(each) == _type_of(best) and not is_alike(each, best)]
    return [*(own or [best]), *others]


def _type_of(answer: Answer) -> str:
    return answer.pool.replica.gpu_type.id


def _below(others: Sequence[Answer], first: Outcome, question: Question) -> list[Answer]:
    """The answers that take less than the sure size of the first: their own sure sizes are no smaller."""
    objective = question.rules.objective
    most = math.inf if first.best is None else spent(first.best, objective)
    return [each for each in others if spent(each, objective) < most]


def _of_other_types(outcome: Outcome) -> list[Answer]:
    best = outcome.answers[0]
    return [] if best.separate else [each for each in outcome.answers[1:] if _type_of(each) != _type_of(best)]


def _surer(asked: Sequence[tuple[Outcome, Sequence[Answer]]], data: Data) -> list[ConfidentAnswer | None]:
    """For each outcome the one of other answers with the cheapest sure size, by the closed form.

    None where the sure size of the outcome's own answer costs no more, or the question states a confidence.
    """
    cautious = [
        (
            _below(others, replace(outcome, answers=(outcome.surely,) if outcome.surely else ()), outcome.question),
            outcome,
        )
        if outcome.sure is not None and outcome.question.target.confidence is None and data.runs is not None
        else ([], outcome)
        for outcome, others in asked
    ]
    sized = recounted([(others, _surely_asked(outcome, data)) for others, outcome in cautious if others])
    found = iter(sized)
    return [_cheaper(next(found), outcome, others) if others else None for others, outcome in cautious]


def _cheaper(sized: Outcome, outcome: Outcome, others: Sequence[Answer]) -> ConfidentAnswer | None:
    objective = outcome.question.rules.objective
    best = min(sized.answers, key=lambda each: spent(each, objective), default=None)
    if best is None or (outcome.surely is not None and spent(best, objective) >= spent(outcome.surely, objective)):
        return None
    return ConfidentAnswer(next(each for each in others if is_alike(each, best)), best)


# --- by simulation ----------------------------------------------------------------------------------------------------


def confirmed(outcome: Outcome, data: Data, *, order: Order = preference, shows: bool = True) -> Outcome:
    """The outcome after simulation. Where no layout within reach is confirmed, all other layouts are tried too.

    The first answer is simulated under its own demand too, where `shows` and it was confirmed under a heavier load.
    """
    from sizing.answers.verify import verify  # load the simulator only where needed

    found, question = verify(outcome, data, order=order, shows=shows), outcome.question
    if (
        found.answer is not None
        or not found.tries
        or found.pairing is not None
        or question.space.layouts == REACHES[-1]
    ):
        return found
    tried = {layout_of(answer.pool.replica) for answer in outcome.answers}
    wider = search(question.with_(layouts=REACHES[-1]), data)
    others = tuple(answer for answer in wider.answers if layout_of(answer.pool.replica) not in tried)
    wider = verify(replace(wider, answers=others), data, order=order, shows=shows)
    return wider if wider.answer is not None else found


def _predicted(cautious: Outcome, question: Question, data: Data, simulated: bool) -> Answer | None:
    """The best answer without a confidence; the cautious answer is a candidate too, as it also keeps the limits."""
    plain = question.with_(confidence=None)
    answers = (answer(plain, data, simulated=simulated, sure=False).answer, cautious.answer)
    found = [each for each in answers if each is not None]
    return min(found, key=lambda each: preference(each, plain), default=None)
