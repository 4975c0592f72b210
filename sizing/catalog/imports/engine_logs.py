"""Start-up logs of vLLM, SGLang and TensorRT-LLM: the engine's memory use and the settings that it printed.

A log has no latencies, so it gives no measured row. Its facts are shown to compare with a prediction of memory, and its settings
are those of rows that are imported with it. The expressions for each engine's lines are data (`_engine_logs.yaml`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sizing.catalog.imports.run import MalformedRunError, parsed
from sizing.catalog.shelf import only
from sizing.specs.measurements import EngineLogs


class EngineFacts(NamedTuple):
    """The facts of a start-up log about one GPU; None or empty if not stated. Sizes are in GiB."""

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


TEXTS = ("engine_version", "model", "kv_precision")
WHOLES = ("kv_cache_tokens", "max_model_len", "tp", "pp", "max_num_seqs", "max_num_batched_tokens")
KEY_AND_VALUE = re.compile(r"KV Cache is allocated\..*K size: ([\d.]+) GB, V size: ([\d.]+) GB")


def engine_of(content: str) -> str:
    """The engine of a start-up log; empty if the text is not one."""
    return next((name for name, known in only(EngineLogs).engines.items() if re.search(known.sign, content)), "")


def facts(content: str, file: str) -> EngineFacts:
    """The facts of a start-up log. Raises MalformedRunError for a log without memory or cache."""
    engine = engine_of(content)
    found: dict[str, str | float | int] = {}
    for name, spellings in only(EngineLogs).engines[engine].facts.items():
        values = (_last(spelling, content) for spelling in spellings)
        value = next((value for value in values if value), "")
        if value and value not in ("auto", "None"):
            found[name] = value if name in TEXTS else _figure(name, value)
    pair = KEY_AND_VALUE.findall(content)
    if engine == "sglang" and pair:
        found["kv_cache_gib"] = _figure("kv_cache_gib", pair[-1][0]) + _figure("kv_cache_gib", pair[-1][1])
    if not {"weights_gib", "kv_cache_gib", "kv_cache_tokens"} & found.keys():
        raise MalformedRunError(f"is a log of {engine} that ends before it says what its memory holds")
    return EngineFacts(file, engine, **found)  # type: ignore[arg-type]


def _last(spelling: str, content: str) -> str:
    """The last group of the last line that matches `spelling`; empty without a match."""
    matches = re.findall(spelling, content)
    if not matches:
        return ""
    return matches[-1] if isinstance(matches[-1], str) else matches[-1][-1]


def _figure(name: str, text: str) -> float | int:
    value = parsed(name, text.replace(",", "").rstrip("."))
    return int(value) if name in WHOLES else value
