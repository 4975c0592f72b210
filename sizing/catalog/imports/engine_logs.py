"""Start-up logs of vLLM, SGLang and TensorRT-LLM: the engine's memory use and the settings that it printed.

A log has no latencies, so it gives no measured row. Its facts are shown to compare with a prediction of memory, and its settings
are those of rows that are imported with it. The expressions for each engine's lines are data (`_engine_logs.yaml`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sizing.catalog.imports.run import MalformedRunError, parsed
from sizing.catalog.profiles import launches
from sizing.catalog.shelf import load, only
from sizing.specs.launch import Term
from sizing.specs.measurements import Conventions, EngineLogs


class EngineFacts(NamedTuple):
    """The facts of a start-up log about one GPU; None or empty if not stated. Sizes are in GiB.

    `dp_in_tp` (the engine's TP counts the ranks of attention too), `expert_parallel` and `prefix_caching` are `on` or empty. `tp`
    is that of a rank. `speculative` is a method of speculative decoding with `drafted` tokens in a row.
    """

    file: str
    engine: str
    engine_version: str = ""
    model: str = ""
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    tp: int | None = None
    pp: int | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_precision: str = ""
    weight_precision: str = ""
    attention_dp: int | None = None
    kv_cache_blocks: int | None = None
    block_tokens: int | None = None
    dp_in_tp: str = ""
    expert_parallel: str = ""
    prefix_caching: str = ""
    speculative: str = ""
    drafted: int | None = None

    @property
    def ep(self) -> int | None:
        """Expert parallelism, over all GPUs of a stage where it is on."""
        return (self.tp or 1) * (self.attention_dp or 1) if self.expert_parallel else None

    @property
    def drafts(self) -> str:
        """Speculative decoding as --speculative takes it; empty without it."""
        return f"{self.speculative}:{self.drafted}" if self.speculative and self.drafted else self.speculative

    @property
    def holds(self) -> str:
        """What its memory holds, in words."""
        known = (
            (self.weights_gib, f"weights of {self.weights_gib} GiB"),
            (self.kv_cache_gib, f"a KV cache of {self.kv_cache_gib} GiB"),
            (self.kv_cache_tokens, f"room for {self.kv_cache_tokens or 0:,} tokens"),
            (
                self.max_concurrency,
                f"{self.max_concurrency} sequences of {f'{self.max_model_len:,} tokens' if self.max_model_len else 'full length'} at once",
            ),
        )
        return ", ".join(words for value, words in known if value)


MEMORY = ("weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib")
SIZES = (*MEMORY, "max_concurrency", "memory_fraction")
SWITCHES = ("expert_parallel", "prefix_caching", "dp_in_tp")
# Facts whose words are those of a flag.
TERMS: dict[str, Term] = {"weight_precision": "precision", "kv_precision": "kv_precision", "speculative": "spec_method"}
AFTER_START = 2**20  # characters after the last line that is a sign of a start
NOTHING = ("", "auto", "None")
ON = "on"
QUOTES = {"'", '"'}
KEY_AND_VALUE = re.compile(r"KV Cache is allocated\..*K size: ([\d.]+) GB, V size: ([\d.]+) GB")


def engine_of(content: str) -> str:
    """The engine of a start-up log; empty if the text is not one."""
    start = _start(content)
    return next((name for name, known in only(EngineLogs).engines.items() if re.search(known.sign, start)), "")


def _start(content: str) -> str:
    """The last start of a log, up to the line that ends it. Later lines are of requests, which may hold any words."""
    logs = only(EngineLogs)
    content = content[_begin(content, "|".join(known.begins for known in logs.engines.values() if known.begins)) :]
    ready = "|".join(line.words for line in logs.ready)
    *_, end = (0, *(found.end() for found in re.finditer(ready, content)))
    signs = "|".join(known.sign for known in logs.engines.values())
    return content[:end] if re.search(signs, content[:end]) else content


def _begin(content: str, begins: str) -> int:
    """The place in a log where its last start begins. Words within quotes are those of a request."""
    lines = ((content.rfind("\n", 0, found.start()) + 1, found.start()) for found in re.finditer(begins, content))
    *_, begin = (0, *(start for start, words in lines if not QUOTES & set(content[start:words])))
    return begin


def facts(content: str, file: str) -> EngineFacts:
    """The facts of a start-up log. Raises MalformedRunError for a log without memory or cache."""
    engine = engine_of(content)
    known = only(EngineLogs).engines[engine]
    content = _start(content)
    *_, last = re.finditer(known.sign, content)
    content = content[: last.end() + AFTER_START]  # what a service writes later says nothing of its start
    found: dict[str, str | float | int] = {}
    for name, spellings in known.facts.items():
        values = (_last(spelling, content) for spelling in spellings)
        value = next((value for value in values if value not in NOTHING), "")
        if value:
            found[name] = _read(engine, name, value)
    pair = KEY_AND_VALUE.findall(content)
    if engine == "sglang" and pair:
        found["kv_cache_gib"] = sum(parsed("the KV cache", size.rstrip(".")) for size in pair[-1])
    made = EngineFacts(file, engine, **found)  # type: ignore[arg-type]
    if made.kv_cache_tokens is None and made.kv_cache_blocks:
        made = made._replace(kv_cache_tokens=made.kv_cache_blocks * (made.block_tokens or known.block_tokens or 1))
    if made.dp_in_tp and made.tp:
        made = made._replace(tp=max(1, made.tp // (made.attention_dp or 1)))
    if not made.holds:
        raise MalformedRunError(f"is a log of {engine} that ends before it says what its memory holds")
    return made


def _read(engine: str, name: str, value: str) -> str | float | int:
    """The value of a fact. Raises MalformedRunError for text that is no number, where the fact is one."""
    if name in SWITCHES:
        return ON
    if EngineFacts._field_defaults.get(name) == "":
        return in_our_words(engine, name, value)
    figure = parsed(name, value.replace(",", "").rstrip("."))
    return figure if name in SIZES else int(figure)


def in_our_words(engine: str, name: str, value: str) -> str:
    """Our word for a format or a method. A format of weights that the engine's word leaves open is empty: it is asked for."""
    if name not in TERMS or value in NOTHING:
        return "" if value in NOTHING else value
    word = value.lower()
    rows = [row for row in load(launches(), engine).spec.flags if row.term == TERMS[name]]
    ours = {theirs.lower(): own for row in rows for theirs, own in row.ours.items()}
    if any(word in row.values for row in rows):  # a method of several versions has one name in an engine
        return word
    return ours.get(word, only(Conventions).cache.get(word, "" if name == "weight_precision" else word))


def _last(spelling: str, content: str) -> str:
    """The last group of the last line that matches `spelling`; empty without a match."""
    matches = re.findall(spelling, content)
    if not matches:
        return ""
    return matches[-1] if isinstance(matches[-1], str) else matches[-1][-1]
