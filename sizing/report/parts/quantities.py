"""Every figure that several commands show: its key in JSON and CSV, heading, writer, unit and meaning.

A command's own column is one of these with another heading (`_replace(heading=...)`), or a `Quantity` in its own file.
"""

from __future__ import annotations

from sizing.formats.view import Quantity, in_words
from sizing.formats.words import gib, milliseconds, money, number, percent, rounded_usd
from sizing.specs.units import MICRO


def _gib(value: float) -> str:
    return f"{gib(value)} GiB"


def _us(seconds: float) -> str:
    return number(seconds / MICRO)


GPUS = Quantity("gpus", "GPUs", unit="GPUs", meaning="GPUs in all")
GPU = in_words("gpu", "GPU", meaning="GPU type")
WEIGHTS = in_words("weight_precision", "weights", meaning="format of the weights")
USD_PER_HOUR = Quantity("usd_per_hour", "$/h", money, unit="$/h", meaning="price of all GPUs")
HEADROOM = Quantity("headroom", "headroom", percent, meaning="growth that the limits leave")
LIMIT = in_words("limit", "limit", meaning="what ends a replica's load")
TTFT = Quantity("ttft_ms", "TTFT", milliseconds, unit="ms", meaning="time to first token, mean")
ITL = Quantity("itl_ms", "ITL", milliseconds, unit="ms", meaning="time between tokens, mean")
E2E = Quantity("e2e_ms", "E2E", milliseconds, unit="ms", meaning="time to last token, mean")
LATENCIES = (TTFT, ITL, E2E)
REQUESTS_PER_S = Quantity("requests_per_s", "requests/s", unit="1/s", meaning="requests served")
MAX_REQUESTS_PER_S = Quantity("max_requests_per_s", "most requests/s", unit="1/s", meaning="requests within the limits")
REQUESTS_PER_S_PER_GPU = Quantity("requests_per_s_per_gpu", "per GPU", unit="1/s", meaning="requests served, of a GPU")
USD_PER_MILLION_OUTPUT_TOKENS = Quantity(
    "usd_per_million_output_tokens", "$/M output tokens", rounded_usd, unit="$", meaning="around the clock at this load"
)
USD_PER_MILLION_TOKENS = Quantity(
    "usd_per_million_tokens", "$/M tokens in all", rounded_usd, unit="$", meaning="prompts and outputs alike"
)
POWER_W = Quantity("power_w", "W (TDP)", number, unit="W", meaning="thermal design power of all GPUs")
KWH_PER_MILLION_OUTPUT_TOKENS = Quantity(
    "kwh_per_million_output_tokens", "kWh/M output tokens", unit="kWh", meaning="at the thermal design power"
)
US_IN_ALL = Quantity("seconds", "us in all", _us, unit="s", meaning="of all executions")
SHARE = Quantity("share", "share", percent, meaning="of the time on the GPU")
WEIGHTS_GIB = Quantity("weights_gib", "weights", _gib, unit="GiB", meaning="weights of one GPU")
KV_CACHE_GIB = Quantity("kv_cache_gib", "KV cache", _gib, unit="GiB", meaning="cache pool of one GPU")
