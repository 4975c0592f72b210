"""What the start of an engine may fail for, though the parts of its memory fit its share."""

from __future__ import annotations

from sizing.formats.words import gib
from sizing.model.memory import MemoryUse, over_gib


def warning_of(m: MemoryUse) -> str | None:
    """What the start of an engine may fail for, though its parts fit its share, and what to lower; None for nothing."""
    if m.start_gib:
        missing = f"{gib(m.start_gib)} GiB may be missing as the engine starts"
        stops = "it stops where less than its memory fraction of the card is free beside its own context"
        return f"{missing}: {stops}; lower --gpu-memory-utilization"
    if m.warm_up_gib:
        missing = f"{gib(m.warm_up_gib)} GiB are missing outside the memory fraction for CUDA graphs and the sampler's warm-up"
        return f"{missing}: the start may run out of memory; lower --gpu-memory-utilization or --max-num-seqs"
    if m.fits and over_gib(m) > 0:
        over = f"the parts take {gib(over_gib(m))} GiB more than the card has"
        return f"{over}: the engine may run out of memory; lower --gpu-memory-utilization or the cache"
    return None
