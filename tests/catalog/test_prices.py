"""Prices: which offer counts, what an API charges, and how old a price is; no test depends on the day it runs on."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from places import ROOT

import sizing
from sizing.catalog.prices import age_words, api_offer, api_offers
from sizing.catalog.profiles import load_gpu
from sizing.cli.main import run
from sizing.specs.errors import InputError

ASKED = {"model": "llama-3.1-8b", "isl": 1000, "osl": 200, "rps": 2.0}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("2026-11", None),
        ("2026-05", None),
        ("2026-04", "7 months old"),
        ("2026-03 to 2026-07", None),
        ("2024-08", "27 months old"),
        ("2025", "11 months old"),
        ("2025-2026", None),
        ("2026-05-07", None),
        ("as asked", None),
    ],
)
def test_a_price_older_than_six_months_says_so(stated: str, words: str | None) -> None:
    assert age_words(stated, date(2026, 11, 28)) == words


def test_prices_are_those_of_each_gpu_type() -> None:
    asked = sizing.ask(**ASKED, gpu="h100-sxm,l40s", price="h100-sxm=2.5,L40S=0.9")
    assert [(each.id, each.usd_per_gpu_hour) for each in asked.space.gpu_types] == [("h100-sxm", 2.5), ("l40s", 0.9)]
    partly = sizing.ask(**ASKED, gpu="h100-sxm,l40s", price="l40s=0.9").space.gpu_types
    assert partly[1].usd_per_gpu_hour == 0.9 and partly[0].price_source != "as asked"
    assert {each.usd_per_gpu_hour for each in sizing.ask(**ASKED, gpu="h100-sxm,l40s", price=2).space.gpu_types} == {2}


def test_a_provider_s_price_names_the_offer_and_leaves_out_what_it_does_not_offer() -> None:
    (only,) = sizing.ask(**ASKED, gpu="h100-sxm,t4", provider="nebius:spot").space.gpu_types
    assert only.usd_per_gpu_hour == 2.15 and (only.price_source or "").startswith("Nebius HGX H100 spot")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price": "h200-sxm=3"}, "h200-sxm is none of the GPU types asked for"),
        ({"price": "h100-sxm=x"}, "no number"),
        ({"price": "3,h100-sxm=2"}, "is the price of no GPU type"),
        ({"price": "h100-sxm=1e9"}, "out of range"),
        ({"provider": "lamda"}, "did you mean Lambda"),
        ({"provider": "lambda:spot"}, "no spot price"),
        ({"provider": "aws", "price": 2}, "contradicts --price"),
    ],
)
def test_what_is_no_price_is_told(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sizing.ask(**ASKED, gpu="h100-sxm", **options)


def test_an_api_s_price_is_found_by_provider_and_model() -> None:
    offer = api_offer("deepseek", "DeepSeek-V3.2", field="--api")
    assert (offer.model.input, offer.model.output, offer.date) == (0.28, 0.4, "2026-11")  # api-docs.deepseek.com
    assert api_offer("together", "gpt-oss-120b", field="--api").model.model == "openai/gpt-oss-120b"
    for provider, model, words in (
        ("togther", "x", "did you mean Together"),
        ("together", "llama-3", "several models"),
    ):
        with pytest.raises(InputError, match=words):
            api_offer(provider, model, field="--api")


def test_all_prices_known_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(api_offers()) == 349
    assert run(["prices", "h100-sxm"]) == 0
    assert "Lambda" in capsys.readouterr().out
    assert run(["prices", "nosuch"]) == 2
    assert "no price of 'nosuch' is known" in capsys.readouterr().err


@pytest.mark.parametrize("price", [["--price", "2.5"], ["--provider", "lambda"], ["--api", "deepseek:deepseek-v3.2"]])
def test_every_way_to_state_a_price_is_costed(price: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "cost",
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "1000",
        "--osl",
        "200",
        "--rps",
        "5",
        "--no-verify",
    ]
    assert run([*asked, *price]) == 0
    assert "a year" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stated", "instead", "field", "words"),
    [
        ("kind: on-demand,", "kind: on-demnd,", "kind", "did you mean on-demand"),
        ('date: "2026-06", ', 'date: "June 2026", ', "date", "must be a day, month or year"),
        ('date: "2026-06", ', 'date: "2026-13", ', "date", "is no date"),
        ('date: "2026-06", ', 'date: "2026-06-31", ', "date", "is no date"),
        ('date: "2026-03 to 2026-07"', 'date: "2026-07 to 2026-03"', "date", "ends before it begins"),
        ("confidence: medium", "confidence: medum", "confidence", "did you mean medium"),
        ("kind: purchase, purchase_usd: 285000", "kind: purchase, usd_per_gpu_hour: 2", "prices[14]", "states purchase_usd"),
        ("compute: 0.811", "compute: 1.2", "compute", "at most 1"),
    ],
)  # fmt: skip
def test_a_misspelt_price_names_its_line(tmp_path: Path, stated: str, instead: str, field: str, words: str) -> None:
    text = (ROOT / "hardware_profiles" / "gpus" / "h100-sxm.yaml").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(stated, instead, 1))
    with pytest.raises(InputError) as raised:
        load_gpu(str(file))
    (fault,) = map(str, raised.value.faults)
    assert fault.startswith(f"{file}:{text[: text.index(stated)].count(chr(10)) + 1}: ")
    assert field in fault.split(": ")[1] and words in fault
