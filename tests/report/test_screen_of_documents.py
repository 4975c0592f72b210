"""What the first screen says of documents that are all done within a time."""

from __future__ import annotations

import pytest
from screens import Capture, printed

from sizing.cli.main import run
from sizing.formats.words import duration


def test_documents_within_a_time_say_when_they_are_done_and_what_they_cost(capsys: Capture) -> None:
    asked = ["estimate", "offline-batch", "-g", "h100-sxm", "--documents", "2M", "--within", "6h", "--no-verify"]
    text, found = printed(asked, capsys)
    job, most = found["batch_job"], found["load"]["max_requests_per_s"]
    assert job["least_s"] == pytest.approx(2e6 / most, rel=1e-6)
    assert job["usd"] == pytest.approx(6 * found["cost"]["usd_per_hour"], rel=1e-6)
    assert "2,000,000 requests in 6 h = 92.6 requests/s" in text
    assert f"Batch at the most requests/s done in {duration(job['least_s'])}; $222 for 6 h" in text
    assert "binds" not in text.lower()  # a full cache is what offline work wants


def test_a_budget_too_small_for_documents_says_how_long_it_takes(capsys: Capture) -> None:
    asked = ["estimate", "offline-batch", "-g", "h100-sxm", "--documents", "2M", "--within", "6h", "--no-verify"]
    _, enough = printed(asked, capsys)
    each = enough["load"]["max_requests_per_s"] / enough["deployment"]["gpus"]
    run([*asked, "--gpus", "5"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"5 GPUs take {duration(2e6 / (5 * each))}; the demand takes 6 x" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(21_600, "6 h"), (21_600.001, "6 h 1 min"), (18_720, "5 h 12 min"), (60, "1 min"), (59, "59 s"), (3_599, "1 h")],
)
def test_a_duration_is_rounded_up_to_a_minute(seconds: float, words: str) -> None:
    assert duration(seconds) == words
