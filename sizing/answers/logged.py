"""The GPU memory in an engine's start-up log, compared with the prediction for the log's settings."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers.deployment import memory
from sizing.catalog.imports.engine_logs import EngineFacts
from sizing.catalog.imports.run import RunSettings
from sizing.model.memory import MemoryUse
from sizing.question.ask import ask_layout
from sizing.specs.errors import InputError

# Options by the setting of a log that states them; the user's values take precedence.
SAME = ("tp", "pp", "ep", "memory_fraction", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_precision")
SETTINGS = {
    "dp": "attention_dp",
    "precision": "weight_precision",
    "speculative": "drafts",
    **dict(zip(SAME, SAME, strict=True)),
}
ANY_ACCEPTANCE = 0.5  # drafts take the same memory, however many are accepted
NEEDED = {"model": "--model", "gpu": "--gpu"}


class Logged(NamedTuple):
    """The facts of a log and the predicted memory, its cache that of one rank, or why there is no prediction."""

    facts: EngineFacts
    predicted: MemoryUse | None
    why_not: str | None


def logged(facts: EngineFacts, said: RunSettings) -> Logged:
    """A log with its prediction; `why_not` names the options that neither log nor user states."""
    names = {"model": said.model or facts.model, "gpu": said.gpu}
    absent = [option for name, option in NEEDED.items() if not names[name]]
    if absent:
        return Logged(facts, None, f"a prediction needs {' and '.join(absent)}")
    version = said.engine_version or facts.engine_version
    options = {
        **names,
        "engine": f"{facts.engine}:{version}" if version else facts.engine,
        **{option: getattr(said, name, None) or getattr(facts, name) or None for option, name in SETTINGS.items()},
    }
    drafts = options["speculative"]
    if drafts and "@" not in drafts:
        options["speculative"] = f"{drafts}@{ANY_ACCEPTANCE}"
    try:
        use = memory(ask_layout(**{name: value for name, value in options.items() if value is not None}))
    except InputError as error:
        return Logged(facts, None, "; ".join(map(str, error.faults)))
    ranks = said.attention_dp or facts.attention_dp or 1
    of_rank = use._replace(kv_cache_tokens=use.kv_cache_tokens // ranks, max_concurrency=use.max_concurrency / ranks)
    return Logged(facts, of_rank, None)
