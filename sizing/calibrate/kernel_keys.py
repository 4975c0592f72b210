"""What tells rows of efficiency apart, what tables of kernels call them, and which of them no refit touches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sizing.specs.calibration import KeptKernels, KernelRules
from sizing.specs.gpu import CollectiveRow, DecodeAttentionRow, EfficiencyRow, MlaDecodeRow, PrefillAttentionRow


class Key(NamedTuple):
    """The profile's name, and of a row what the choice among rows goes by."""

    profile: str
    operation: str
    engine: str
    precision: str = ""
    head_dim: int = 0
    cache: str = ""
    q_heads: int = 0
    gpus: int = 0
    backend: str = ""

    def __str__(self) -> str:
        """Return the key in words, but for the profile."""
        parts = [self.operation, self.engine, self.precision]
        parts += [f"head {self.head_dim}"] if self.head_dim else []
        parts += [f"{self.cache} cache"] if self.cache else []
        parts += [f"{self.q_heads} heads"] if self.q_heads else []
        parts += [f"{self.gpus} GPUs"] if self.gpus else []
        return " ".join(part for part in parts if part)


def key_of(profile: str, row: EfficiencyRow) -> Key:
    """Return the key of a row of a profile."""
    precision = "" if isinstance(row, CollectiveRow) else row.precision
    key = Key(profile, row.operation, row.engine, precision)
    if isinstance(row, DecodeAttentionRow):
        return key._replace(head_dim=row.head_dim)
    if isinstance(row, PrefillAttentionRow):
        return key._replace(head_dim=row.head_dim, cache=row.cache_precision)
    if isinstance(row, MlaDecodeRow):
        return key._replace(q_heads=row.q_heads)
    if isinstance(row, CollectiveRow):
        return key._replace(gpus=row.gpus, backend=row.backend)
    return key


def why_kept(key: Key, rules: Iterable[KeptKernels]) -> str | None:
    """Return why no refit touches a row, None where one may."""
    for rule in rules:
        if (
            rule.operation in (None, key.operation)
            and rule.engine in (None, key.engine)
            and rule.precision in (None, key.precision)
            and rule.q_heads in (None, key.q_heads)
            and (rule.gpus is None or key.gpus in rule.gpus)
            and (rule.profiles is None or key.profile in rule.profiles)
        ):
            return rule.why
    return None


class Names:
    """The tables' names turned into the profiles'. Without a name of its own a line has no key, and is passed."""

    def __init__(self, rules: KernelRules) -> None:
        """Keep the rules that hold the names."""
        self._rules = rules

    def computed(self, gpu: str, framework: str, operation: str, precision: str) -> Key | None:
        """Return the key of a product or of attention."""
        rules = self._rules
        if gpu not in rules.gpus or framework not in rules.engines or precision not in rules.precisions:
            return None
        return Key(rules.gpus[gpu], operation, rules.engines[framework], rules.precisions[precision])

    def prefill(self, gpu: str, framework: str, precision: str, cache: str, head_dim: int) -> Key | None:
        """Return the key of causal attention."""
        key = self.computed(gpu, framework, "prefill_attention", precision)
        if key is None or cache not in self._rules.precisions:
            return None
        return key._replace(cache=self._rules.precisions[cache], head_dim=head_dim)

    def collective(self, gpu: str, source: str, operation: str, backend: str, gpus: int) -> Key | None:
        """Return the key of a collective."""
        rules = self._rules
        if gpu not in rules.gpus or source not in rules.engines:
            return None
        if operation not in rules.operations or backend not in rules.backends:
            return None
        key = Key(rules.gpus[gpu], rules.operations[operation], rules.engines[source])
        return key._replace(gpus=gpus, backend=rules.backends[backend])

    def routing(self, held: Iterable[str]) -> str | None:
        """Return the first routing of the rules that a table holds, None where it holds none."""
        found = set(held)
        return next((routing for routing in self._rules.routings if routing in found), None)
