"""The tables of `import`: a table a setting, 80 columns wide, with a latency wherever a row states one."""

from __future__ import annotations

from sizing.catalog.imports.rows import HEAD
from sizing.formats.text import USUAL, render
from sizing.report.imports import document, record

ROW = dict.fromkeys(HEAD) | {
    "source": "vllm bench serve", "model": "a-long-organisation/A-Model-With-A-Long-Name-480B-A35B-Instruct-FP8", "gpu": "h100-sxm",
    "engine": "vllm", "tp": 8, "n_gpus": 8, "weight_precision": "fp8", "mode": "open_loop", "notes": "rate=0.983333", "isl": 128_000.0,
    "osl": 1024.0, "ttft_ms": 12_345.6, "itl_ms": 123.4, "e2e_ms": 123_456.7, "req_per_s": 1234.5, "output_tok_per_s": 1234567.8,
}  # fmt: skip
MEDIANS = {
    "ttft_ms": None,
    "itl_ms": None,
    "e2e_ms": None,
    "ttft_p50_ms": 6681.6,
    "itl_p90_ms": 26.4,
    "e2e_p99_ms": 9398.4,
}


def shown(*rows: dict[str, object]) -> str:
    return render(document(record([{**ROW, **row} for row in rows], ["runs.json"], [])))  # type: ignore[dict-item]


def test_a_row_of_percentiles_shows_its_latencies() -> None:
    assert "6.68 s p50" in (text := shown(MEDIANS)) and "26.4 ms p90" in text and "9.40 s p99" in text


def test_settings_have_tables_of_their_own_that_fit() -> None:
    drafts = {"notes": "rate=5; speculative decoding: eagle3:3, 2.4 tokens a step"}
    text = shown({}, MEDIANS, {"gpu": "h200-sxm"}, drafts, {"notes": drafts["notes"].replace("eagle3", "mtp")})
    assert max(map(len, text.splitlines())) <= USUAL
    assert text.count("measured row") == 4
    assert "(eagle3:3)" in " ".join(text.split()) and "(mtp:3)" in " ".join(text.split())
