"""The discovery questions of `llmsize init`: their texts, suggestions and parsers, and the workload file that results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.catalog import models, profiles, workloads
from sizing.catalog.files import expanded, is_file, read_text
from sizing.catalog.shelf import only
from sizing.specs.errors import Part, check, nearest
from sizing.specs.units import comma_separated, parse_limit, parse_number
from sizing.specs.workload import LATENCIES, Limit, TextLengths, Workload

Answers = Mapping[str, Any]  # by the key of the question
SUGGESTED = "suggested"  # key of the answers that the user did not give: a set of the keys of questions
REST = "..."  # takes the suggestion for this question and for all that follow
NONE = ("none", "no", "-")
YES, NO = ("yes", "y"), ("no", "n")
OTHER, LIKE_OTHER = "other", "chat"  # an unlisted use case, and the ready workload that suggests its answers
STREAMING, SEQUENTIAL, OFFLINE = "streaming", "sequential", "offline"
# Words for the kinds of demand that are one number; the first word is used for output.
KINDS = {
    "requests_per_s": ("requests/s", "rps", "qps", "/s", "a second", "per second"),
    "daily_active_users": ("users a day", "dau", "a day", "daily", "per day", "/day"),
    "concurrent_users": ("users", "concurrent users", "people"),
    "concurrency": ("in flight", "concurrent", "concurrency", "concurrent requests"),
}
OF_A_DAY = ("daily_active_users", "calls_per_year", "documents_per_year", "mean_requests_per_s")  # they need a peak
_LENGTH = re.compile(r"\s*([0-9][0-9.,]*\s*[kKmM]?)\s*(tokens?|words?|pages?|)\s*\Z")
_AMOUNT = re.compile(r"\s*([0-9][0-9.,]*\s*[kKmM]?)\s*([a-z/ ]*?)\s*\Z")
ANY, OWN = "any", "own"  # answers to the question of the place
MOST_SAMPLE_BYTES = 64 * 2**20


class DiscoveryQuestion(NamedTuple):
    """A question: its key, its text, its explanation, its suggestion, its parser, and when it applies.

    `read` raises ValueError or InputError for an invalid answer.
    """

    key: str
    text: str
    why: str
    suggests: Callable[[Answers], str]
    read: Callable[[str, Answers], Any]
    applies: Callable[[Answers], bool] = lambda answers: True


class DiscoveredTokens(NamedTuple):
    """A length in tokens, and the text of the answer where it was not in tokens."""

    length: int
    said: str | None = None


class DiscoveredDemand(NamedTuple):
    """The demand fields of a workload, and the text of the answer."""

    fields: dict[str, Any] | None
    said: str


def ready(answers: Answers) -> Workload:
    """The ready workload of the use case; `chat` for an unlisted one."""
    return workloads.load_workload(_like(answers)).spec


def _like(answers: Answers) -> str:
    return LIKE_OTHER if answers["use case"] == OTHER else str(answers["use case"])


def _use_case(text: str, answers: Answers) -> str:
    known = (*workloads.SHELF.ids, OTHER)
    return _one_of(text.strip().lower().replace(" ", "-"), known, f"{text!r} is no use case: {', '.join(known)}")


def _one_of(word: str, known: Sequence[str], otherwise: str) -> str:
    """A known word. Raises ValueError with the text `otherwise` and the nearest word."""
    if word not in known:
        near = nearest(word, known)
        raise ValueError(otherwise + (f"; did you mean {near}?" if near else ""))
    return word


def _mode(text: str, answers: Answers) -> str:
    word = text.strip().lower()
    modes = {**dict.fromkeys(YES, STREAMING), **dict.fromkeys(NO, SEQUENTIAL)}
    found = modes.get(word, word)
    if found not in (STREAMING, SEQUENTIAL, OFFLINE):
        raise ValueError(f"{text!r} is neither yes, no nor offline")
    return found


def _model(text: str, answers: Answers) -> str:
    models.load_model(text.strip())
    return text.strip()


def tokens(text: str) -> DiscoveredTokens:
    """Read a length in tokens, words or pages, or from a sample text whose words are counted.

    Raises ValueError for any other text, InputError for a sample that cannot be read.
    """
    facts, match = only(TextLengths), _LENGTH.fullmatch(text)
    if match is not None:
        amount, unit = parse_number(match[1].replace(" ", "")), match[2].rstrip("s")
        words = amount * facts.words_per_page if unit == "page" else amount
        count = round(words if unit in ("", "token") else words * facts.tokens_per_word)
        if count < 1:
            raise ValueError(f"{text!r} is no token")
        return DiscoveredTokens(count, None if unit in ("", "token") else f"{text.strip()}, {_ratio(facts, unit)}")
    path = expanded(text.strip().removeprefix("@"))
    if not is_file(path):
        raise ValueError(f"{text!r} is no length: 2000, 1500 words, 3 pages, or the path of a sample text")
    words = len(read_text(path, MOST_SAMPLE_BYTES, "a sample is").split())
    if not words:
        raise ValueError(f"{text!r} holds no word")
    return DiscoveredTokens(round(words * facts.tokens_per_word), f"{words:,} words of {path}, {_ratio(facts, 'word')}")


def _ratio(facts: TextLengths, unit: str) -> str:
    of_page = f"{facts.words_per_page:g} words a page, " if unit == "page" else ""
    return f"{of_page}{facts.tokens_per_word:.3g} tokens a word"


def _demand(text: str, answers: Answers) -> DiscoveredDemand:
    word = text.strip().lower()
    if word in NONE:
        return DiscoveredDemand(None, "none: what GPUs serve is asked")
    stated = ready(answers).demand
    if word == _as_ready(answers) and stated is not None:
        return DiscoveredDemand(stated.model_dump(exclude_unset=True), word)
    match = _AMOUNT.fullmatch(word)
    kind = None if match is None else next((kind for kind, words in KINDS.items() if match[2].strip() in words), None)
    if match is None or kind is None:
        forms = ", ".join(f"50 {words[0]}" for words in KINDS.values())
        raise ValueError(f"{text!r} is no demand: {forms}; or none")
    amount = parse_number(match[1].replace(" ", ""))
    return DiscoveredDemand({kind: int(amount) if amount.is_integer() else amount}, text.strip())


def _as_ready(answers: Answers) -> str:
    return f"as {_like(answers)}"


def _suggested_demand(answers: Answers) -> str:
    if answers["mode"] == OFFLINE and ready(answers).mode != OFFLINE:
        return NONE[0]
    stated = ready(answers).demand
    if stated is None or stated.kind not in KINDS:
        return NONE[0] if stated is None else _as_ready(answers)
    return f"{getattr(stated, stated.kind):.12g} {KINDS[stated.kind][0]}"


def _peak(text: str, answers: Answers) -> str | float | None:
    word = text.strip().lower()
    if word in NONE:
        return None
    if word in workloads.profile_names():
        return word
    try:
        found = parse_number(word)
    except ValueError:
        names = ", ".join(workloads.profile_names())
        raise ValueError(f"{text!r} is neither a peak over the mean (2) nor a profile: {names}") from None
    if found < 1:
        raise ValueError(f"{text!r}: a peak is at least the mean, 1")
    return found


def _suggested_peak(answers: Answers) -> str:
    stated = ready(answers).planning.peak_to_mean
    return NONE[0] if stated is None else f"{stated:g}"


def _limit(text: str, answers: Answers) -> str | None:
    if text.strip().lower() in NONE:
        return None
    parse_limit(text.strip())
    return text.strip()


def _suggested_limit(name: str) -> Callable[[Answers], str]:
    def suggests(answers: Answers) -> str:
        found: Limit | None = None if answers["use case"] == OTHER else getattr(ready(answers).limits, name)
        if found is None:
            return NONE[0]
        seconds = f"{found.seconds:g}s" if found.seconds >= 1 else f"{found.seconds * 1e3:g}ms"
        return seconds if found.statistic == "mean" else f"{found.statistic}:{seconds}"

    return suggests


def _place(text: str, answers: Answers) -> str:
    otherwise = f"{text!r} is no place: {ANY}, {OWN}, or a provider that `llmsize prices` shows"
    return _one_of(text.strip().lower(), (ANY, OWN, *sorted(providers())), otherwise)


def _gpus(text: str, answers: Answers) -> tuple[str, ...]:
    names = () if text.strip().lower() in (*NONE, ANY) else tuple(comma_separated(text))
    check(*(Part(partial(profiles.load_gpu, name)) for name in names))
    return names


QUESTIONS = (
    DiscoveryQuestion("use case", "What is it for?", "The ready workload most like it suggests the other answers; other suggests little.", lambda a: "chat", _use_case),
    DiscoveryQuestion("mode", "Do people read the answer as it comes?", "yes streams it, no waits for all of it, offline has nobody waiting.", lambda a: {STREAMING: "yes", SEQUENTIAL: "no"}.get(ready(a).mode, OFFLINE), _mode),
    DiscoveryQuestion("model", "Which model?", "A name (llmsize models), a Hugging Face id, or a config.json.", lambda a: ready(a).model, _model),
    DiscoveryQuestion("tokens in", "How long is a prompt, with history and documents?", "On average: tokens (2000), words, pages, or the path of a sample text.", lambda a: str(ready(a).tokens.isl), lambda text, a: tokens(text)),
    DiscoveryQuestion("tokens out", "How long is an answer?", "On average, with what a reasoning model thinks.", lambda a: str(ready(a).tokens.osl), lambda text, a: tokens(text)),
    DiscoveryQuestion("demand", "How much is asked of it?", "At the busiest time: requests/s, users, requests in flight; or users a day. none asks what GPUs serve.", _suggested_demand, _demand),
    DiscoveryQuestion("peak", "How does the load peak?", "The busiest hour over the mean of active hours (2), or a profile by hour: office, consumer ...", _suggested_peak, _peak, lambda a: a["demand"].fields is not None and any(kind in OF_A_DAY for kind in a["demand"].fields)),
    DiscoveryQuestion("ttft", "How long may the first word take?", "500ms is a mean, p95:1s holds for 95 of 100 requests.", _suggested_limit("ttft"), _limit, lambda a: a["mode"] == STREAMING),
    DiscoveryQuestion("itl", "How long may a word take from then on?", "50 ms a token is four times as fast as people read.", _suggested_limit("itl"), _limit, lambda a: a["mode"] == STREAMING),
    DiscoveryQuestion("e2e", "How long may a whole answer take?", "5s, or p95:5s.", _suggested_limit("e2e"), _limit, lambda a: bool(a["mode"] != OFFLINE)),
    DiscoveryQuestion("place", "Where does it run?", "any, own, or a cloud provider (llmsize prices), whose prices then count.", lambda a: ANY, _place),
    DiscoveryQuestion("gpus", "Which GPUs are at hand?", "Names with commas (llmsize gpus), or any.", lambda a: ANY, _gpus),
)  # fmt: skip


def workload_text(answers: Answers) -> str:
    """The text of the workload file, with comments on the origin of its values."""
    return "\n".join(_lines(answers)) + "\n"


def _lines(answers: Answers) -> Iterator[str]:
    like, as_ready = ready(answers), _like(answers)
    yield "# A workload of `llmsize init`. Any line can be changed; `llmsize schema workload` says what may stand here."
    yield f"# For editors: llmsize schema workload > workload.json, and as first line {EDITOR_LINE}"
    if answers["use case"] != OTHER:
        yield f"description: {_quoted(like.description or as_ready)}"
    yield f"model: {_quoted(answers['model'])}{_comment(answers, 'model')}"
    if answers["model"] == like.model and like.precision is not None:
        yield f"precision: {like.precision}  # as in the ready workload {as_ready}; without it the checkpoint's own"
    yield from _of_lengths(answers, like)
    yield from _of_demand(answers, like)
    limits = {name: answers[name] for name in LATENCIES if answers.get(name) is not None}
    if limits:
        yield "limits:  # time to the first token, between tokens, of the whole answer"
        yield from (f"  {name}: {limit}{_comment(answers, name)}" for name, limit in limits.items())
    yield f"mode: {answers['mode']}{_comment(answers, 'mode', 'streaming, sequential or offline')}"
    if answers["gpus"]:
        yield f"gpu: [{', '.join(map(_quoted, answers['gpus']))}]"
    if answers["place"] == OWN:
        yield "# On own servers: llmsize cost FILE -g h100-sxm --own hgx-h100 says what they cost."
    elif answers["place"] != ANY:
        yield f"# At the prices of {answers['place']}: llmsize estimate FILE {' '.join(next_options(answers))}"


EDITOR_LINE = "# yaml-language-server: $schema=workload.json"


def _of_lengths(answers: Answers, like: Workload) -> Iterator[str]:
    isl, osl = answers["tokens in"], answers["tokens out"]
    yield "tokens:  # on average; isl_max and osl_max are the longest served"
    for name, key, found in (("isl", "tokens in", isl), ("osl", "tokens out", osl)):
        yield f"  {name}: {found.length}{_comment(answers, key, found.said)}"
        for more in (f"{name}_max", f"{name}_std"):
            stated = getattr(like.tokens, more)
            if stated is not None and found.length == getattr(like.tokens, name):
                yield f"  {more}: {stated:g}"


def _comment(answers: Answers, key: str, *said: str | None) -> str:
    """A comment with what was said; it also says of an answer that it was only suggested."""
    words = [*filter(None, said), *(["as suggested"] if key in answers.get(SUGGESTED, ()) else [])]
    return f"  # {'; '.join(words)}" if words else ""


def _of_demand(answers: Answers, like: Workload) -> Iterator[str]:
    demand, peak = answers["demand"], answers.get("peak")
    if demand.fields is None:
        yield "# No demand: llmsize says what GPUs serve. Else one of requests_per_s, concurrent_users, daily_active_users ..."
        return
    yield f"demand:{_comment(answers, 'demand', demand.said)}"
    for kind, value in demand.fields.items():
        written = value if not isinstance(value, dict) else f"{{{', '.join(f'{k}: {v}' for k, v in value.items())}}}"
        yield f"  {kind}: {written}"
    stated = like.planning
    habits = {name: getattr(stated, name) for name in ("requests_per_user_per_day", "active_hours")}
    if isinstance(peak, str):
        habits = {"requests_per_user_per_day": habits["requests_per_user_per_day"], "profile": peak}
    elif peak is not None:
        habits["peak_to_mean"] = peak
    said = {name: value for name, value in habits.items() if value is not None}
    if said and any(kind in OF_A_DAY for kind in demand.fields):
        yield f"planning:{_comment(answers, 'peak', 'how the peak comes from the mean; llmsize explain demand')}"
        yield from (f"  {name}: {value}" for name, value in said.items())


def _quoted(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ./_:;,()-]*", text) and ": " not in text and not text.endswith(":")
    return text if plain and not text.replace(".", "").isdigit() else "'" + text.replace("'", "''") + "'"


def providers() -> frozenset[str]:
    """The providers whose prices are known."""
    from sizing.catalog.prices import offers

    found = (profiles.load_gpu(name).spec for name in profiles.GPUS.ids)
    return frozenset(offer.provider.lower() for gpu in found for offer in offers(gpu))


def next_options(answers: Answers) -> tuple[str, ...]:
    """The options of `llmsize estimate` that a workload file cannot state: the provider whose prices count."""
    return () if answers["place"] in (ANY, OWN) else ("--provider", answers["place"])
