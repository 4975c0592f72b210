"""From result files to GPUs: `llmsize import` and `estimate --from` on the course's own points."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from places import DATA, SHARED

from sizing.cli.main import run

COURSE = [str(path) for path in sorted((DATA / "course").glob("*.json"))]
LIMITED = ["--rps", "200", "--closed-loop", "--max-utilisation", "100%"]


@pytest.fixture
def course(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    out = tmp_path / "course.csv"
    words = ["import", *COURSE, "-g", "h100-sxm", "--tp", "1", "--precision", "fp8", "-o", str(out)]
    assert run(words) == 0
    capsys.readouterr()
    return str(out)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run(["estimate", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("limit", "gpus", "nodes"), [("300ms", 39, 5), ("500ms", 23, 3)])
def test_the_course_needs_its_servers(
    course: str, capsys: pytest.CaptureFixture[str], limit: str, gpus: int, nodes: int
) -> None:
    # 200 requests/s over 41.56 and 70.75 a server of eight: 4.81 and 2.83 servers.
    found = answer(capsys, "--from", course, "--ttft", limit, *LIMITED)
    assert (found["deployment"]["gpus"], found["deployment"]["nodes"]) == (gpus, nodes)
    assert found["deployment"]["other_gpus"] > 0
    assert found["latency"]["ttft_ms"]["mean"] <= float(limit.removesuffix("ms"))


@pytest.mark.skipif(not (SHARED / "formats").is_dir(), reason="samples are not here")
def test_requests_count_and_not_the_tokens_of_another_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Notebook 3: 31.789 requests/s at 100 in flight, so 100 requests/s take 3.15 GPUs; tokens/s over 50 would say 2.69.
    sample = SHARED / "formats" / "genai_perf_c100.profile_export_genai_perf.json"
    out = str(tmp_path / "notebook.csv")
    assert (
        run(
            ["import", str(sample), "-m", "llama-3-8b", "-g", "h100-sxm", "--tp", "1", "--precision", "bf16", "-o", out]
        )
        == 0
    )
    capsys.readouterr()
    found = answer(capsys, "--from", out, "--rps", "100", "--closed-loop", "--max-utilisation", "100%")
    assert 100 / found["load"]["most_per_replica"] == pytest.approx(3.15, abs=0.005)
    assert found["deployment"]["gpus"] == 4


def test_settings_select_no_rows_and_those_of_predictions_alone_wait(
    course: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--from", course, "--ttft", "300ms", "--rps", "200")
    before = answer(capsys, *asked)["deployment"]
    for name, value in (
        ("ENGINE", "sglang"),
        ("GPU", "h200-sxm"),
        ("TP", "4"),
        ("CONFIDENCE", "90%"),
        ("NO_VERIFY", "yes"),
    ):
        monkeypatch.setenv(f"LLMSIZE_{name}", value)
    assert answer(capsys, *asked)["deployment"] == before
    monkeypatch.setenv("LLMSIZE_MAX_UTILISATION", "40%")
    assert answer(capsys, *asked)["deployment"]["gpus"] > before["gpus"]
    assert run(["estimate", *asked, "--engine", "sglang"]) == 2


def test_settings_state_nothing_of_imported_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSIZE_GPU", "h200-sxm")
    words = ("import", COURSE[0], "--tp", "1", "--precision", "fp8", "--json")
    assert run([*words]) == 2
    assert "--gpu" in capsys.readouterr().err
    assert run([*words, "-g", "h100-sxm"]) == 0


def test_one_demand_gives_one_count_however_it_is_read(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--from", course, "--ttft", "500ms")
    of_users = answer(capsys, *limits, "--users", "3000")
    load = of_users["load"]
    e2e_s = of_users["latency"]["e2e_ms"]["mean"] / 1e3
    assert load["requests_per_s"] * (e2e_s + 30) == pytest.approx(3000, rel=1e-6)
    of_rate = answer(capsys, *limits, "--rps", repr(load["requests_per_s"]))
    assert of_rate["deployment"]["gpus"] == of_users["deployment"]["gpus"]


def test_more_demand_never_needs_fewer_and_a_looser_limit_never_more(
    course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def gpus(*words: str) -> int:
        return int(answer(capsys, "--from", course, *words)["deployment"]["gpus"])

    by_rate = [gpus("--rps", str(rate), "--ttft", "400ms") for rate in (1, 20, 50, 200, 1000)]
    by_limit = [gpus("--rps", "200", "--ttft", f"{limit}ms") for limit in (100, 200, 300, 500, 900)]
    assert by_rate == sorted(by_rate)
    assert by_limit == sorted(by_limit, reverse=True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--rps", "10", "--ttft", "1ms"], 1, "lightest measured load"),
        (["--rps", "10", "--ttft", "p95:1s"], 2, "do not state the p95 of TTFT"),
        (["--rps", "10", "--max-num-seqs", "8"], 2, "--max-num-seqs: has no effect with --from"),
        (["--rps", "10", "--isl", "999"], 2, "leaves no measured row"),
        (
            ["--rps", "10", "-m", "meta-llama-3-8b-instrct"],
            2,
            "no measured row; allowed: meta-llama/Meta-Llama-3-8B-Instruct",
        ),
        (
            ["--rps", "10", "--precision", "fp16"],
            2,
            "--precision: leaves no measured row; allowed: fp8",
        ),
        (["--rps", "10", "--mode", "offline", "--ttft", "1s"], 2, "--ttft: has no meaning for offline work"),
        (["--rps", "10", "--mode", "offline", "--max-utilisation", "0.8"], 2, "--max-utilisation: has no meaning"),
        ([], 2, "nothing says how much to serve"),
        (["--rps", "10", "-g", "8xh100"], 2, "'8xh100' states a number of GPUs"),
    ],
)
def test_what_measurements_do_not_answer_is_said(
    course: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert run(["estimate", "--from", course, *words]) == code
    out, err = capsys.readouterr()
    assert said in " ".join((out + err).split())


def test_rows_of_a_gpu_without_a_profile_say_what_is_not_known(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path(course)
    rows.write_text(rows.read_text(encoding="utf-8").replace("h100-sxm", "BigGPU"), encoding="utf-8")
    assert run(["estimate", "--from", course, "--rps", "10"]) == 0
    assert "BigGPU has no profile: price, GPUs of a server" in " ".join(capsys.readouterr().out.split())


def test_a_result_file_is_imported_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--from", COURSE[0], "--rps", "10"]) == 2
    assert "llmsize import FILE -o rows.csv" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "plan", "cost"])
def test_every_command_refuses_limits_of_offline_work(
    course: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run([command, "--from", course, "--rps", "10", "--mode", "offline", "--e2e", "9s"]) == 2
    assert "--e2e: has no meaning for offline work" in capsys.readouterr().err


def test_rows_of_an_unknown_precision_are_refused(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Path(course)
    rows.write_text(rows.read_text(encoding="utf-8").replace(",fp8,", ",fp5,"), encoding="utf-8")
    assert run(["estimate", "--from", course, "--rps", "10"]) == 2
    assert "'fp5' is no known format; did you mean fp8?" in capsys.readouterr().err


@pytest.mark.parametrize("loads", [1, 3])
def test_e2e_is_that_of_the_parts_though_the_chain_ends_at_the_heaviest_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loads: int
) -> None:
    head, *rows = (DATA / "course_8b_2000_200.csv").read_text(encoding="utf-8").splitlines()
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([head, *rows[:loads]]) + "\n", encoding="utf-8")
    latency = answer(capsys, "--from", str(file), "--rps", "10")["latency"]
    ttft, itl, e2e = (latency[f"{name}_ms"]["mean"] for name in ("ttft", "itl", "e2e"))
    assert e2e == pytest.approx(ttft + itl * (200 - 1), rel=1e-4)


def test_a_closed_loop_without_its_concurrency_is_refused(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path(course).read_text().splitlines()
    at = lines[0].split(",").index("concurrency")
    cells = lines[2].split(",")
    cells[at] = ""
    Path(course).write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]) + "\n")
    assert run(["estimate", "--from", course, "--rps", "10"]) == 2
    assert "a closed loop has a concurrency" in capsys.readouterr().err


def test_good_runs_are_written_and_a_bad_file_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, out = tmp_path / "bad.json", tmp_path / "rows.csv"
    bad.write_text("{")
    words = ["import", COURSE[0], str(bad), "-g", "h100-sxm", "--tp", "1", "--precision", "fp8", "-o", str(out)]
    assert run(words) == 2
    assert len(out.read_text().splitlines()) == 2
    assert "is not valid JSON" in capsys.readouterr().err
    assert run([*words, "--skip-bad"]) == 0


# --- rows at random arrivals ---------------------------------------------------------------------------------------------

# (arrivals/s, TTFT, ITL and E2E in ms, requests/s); the last one was overloaded.
AT_RATES = ((2, 60, 8, 1652, 2.0), (8, 80, 10, 2070, 8.0), (16, 150, 16, 3334, 16.0), (32, 9000, 30, 14970, 15.0))
CLIENTS = ((8, 70, 9, 1861, 4.3), (64, 200, 20, 4180, 15.3))


@pytest.fixture
def both(tmp_path: Path) -> str:
    head = "id,engine,model,gpu,tp,weight_precision,isl,osl,mode,concurrency,ttft_ms,itl_ms,e2e_ms,req_per_s,notes"
    setting = "vllm,llama-3.1-8b,h100-sxm,1,bf16,1000,200"
    rows = [f"a{rate},{setting},open_loop,,{','.join(map(str, rest))},rate={rate}" for rate, *rest in AT_RATES]
    rows += [f"c{clients},{setting},closed_loop,{clients},{','.join(map(str, rest))}," for clients, *rest in CLIENTS]
    file = tmp_path / "both.csv"
    file.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return str(file)


def test_rows_at_a_rate_are_read_as_they_are(both: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--from", both, "--max-utilisation", "100%")
    at = {rate: answer(capsys, *asked, "--rps", str(rate)) for rate in (8, 12, 16, 17)}
    for rate, found in at.items():
        assert found["deployment"]["arrivals"] == "random" and found["deployment"]["rows"] == 4
        assert found["deployment"]["gpus"] == (1 if rate <= 16 else 2)
        assert found["load"]["most_per_replica"] == 16  # never beyond the highest rate that was served
    means = {rate: found["latency"]["ttft_ms"]["mean"] for rate, found in at.items()}
    assert [means[rate] for rate in (8, 12, 16)] == pytest.approx([80, 115, 150])  # interpolated in the rate
    flight = at[12]["load"]["in_flight_per_replica"]
    assert 8 * 2.070 < flight < 16 * 3.334


def test_a_limit_binds_between_measured_rates(both: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--from", both, "--rps", "100", "--ttft", "100ms")
    assert found["load"]["most_per_replica"] == pytest.approx(8 + 8 * 20 / 70)
    assert found["load"]["binds"] == "ttft"


def test_of_both_kinds_of_rows_those_with_the_arrivals_of_the_demand_are_used(
    both: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("estimate", "--from", both, "--rps", "20")
    for words, said in (
        ((), "4 rows at random arrivals, as the demand: nothing is converted; 2 rows of other"),
        (("--closed-loop",), "2 rows in a closed loop, read as measured; 4 rows of other"),
    ):
        assert run([*asked, *words]) == 0
        assert said in " ".join(capsys.readouterr().out.split())


def test_a_row_at_a_rate_without_latencies_is_no_point(both: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(both)
    file.write_text(file.read_text().replace(",60,8,1652,", ",60,,,"), encoding="utf-8")
    assert answer(capsys, "--from", both, "--rps", "10")["deployment"]["rows"] == 3
    head, first, *_ = file.read_text().splitlines()
    file.write_text(f"{head}\n{first}\n", encoding="utf-8")
    assert run(["estimate", "--from", both, "--rps", "10"]) == 2
    assert "nothing says how many requests were in flight" in capsys.readouterr().err


def test_what_lies_below_the_lightest_load_or_is_not_stated_is_said(
    course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(course)
    head, *lines = file.read_text().splitlines()
    names = head.split(",")
    heavy = [line for line in lines if int(line.split(",")[names.index("concurrency")]) >= 150]
    cells = heavy[0].split(",")
    cells[names.index("ttft_ms")] = ""
    file.write_text("\n".join([head, *heavy]) + "\n", encoding="utf-8")
    assert run(["estimate", "--from", course, "--rps", "5"]) == 0
    assert "Lighter than the lightest measured load, 150 in flight" in " ".join(capsys.readouterr().out.split())
    file.write_text("\n".join([head, ",".join(cells), *heavy[1:]]) + "\n", encoding="utf-8")
    assert run(["estimate", "--from", course, "--rps", "5", "--ttft", "2s"]) == 2
    assert f"row {cells[0]} does not state the mean of TTFT" in capsys.readouterr().err


def test_rows_at_a_rate_are_drawn_as_a_curve(tmp_path: Path, both: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with rows of clients draws those; one with rows at a rate alone draws them, at their mean requests in flight."""
    for rates_alone, loads in ((False, [8, 64]), (True, [rate * e2e / 1000 for rate, *_, e2e, _ in AT_RATES])):
        lines = Path(both).read_text().splitlines()
        file = tmp_path / "drawn.csv"
        kept = [line for line in lines if not (rates_alone and line.startswith("c"))]
        file.write_text("\n".join(kept) + "\n", encoding="utf-8")
        assert run(["curve", "--measured", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        drawn = [point["concurrency"] for line in found["lines"] for point in line["points"]]
        assert drawn[:3] == pytest.approx(loads[:3])
        assert (found["inputs"].get("arrivals") == "poisson") == rates_alone


# --- the same rows in other commands -----------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_command_counts_the_replicas_of_estimate(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--from", course, "--ttft", "300ms", *LIMITED)
    for command in ("estimate", "compare", "plan", "cost"):
        assert said(capsys, command, *asked)["deployment"]["gpus"] == 39, command


def test_a_plan_adds_its_reserve_and_grows_from_today(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", "--from", course, "--ttft", "300ms", *LIMITED)
    plan = said(capsys, *asked, "--spare", "2", "--growth", "5%", "--until", "2032-12")["plan"]
    assert (plan["base_replicas"], plan["reserve_replicas"], plan["gpus"], plan["nodes"]) == (39, 2, 41, 6)
    assert plan["growth"]["at_date"]["gpus"] > 41
    assert plan["growth"]["at_date"]["gpus"] == pytest.approx(
        plan["growth"]["at_date"]["times"] * 200 / 41.56 * 8 + 2, abs=2
    )


def test_a_bill_is_that_of_the_servers_that_hold_the_replicas(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("cost", "--from", course, "--ttft", "300ms", *LIMITED, "--own", "hgx-h100", "--api", "1.0,3.0")
    ways = said(capsys, *asked)["ways"]
    own, api = (next(way for way in ways if way["name"].startswith(name)) for name in ("own", "API"))
    assert (own["units"], own["gpus"]) == (5, 40)
    # An API's $1 and $3 a million are $2.60 a thousand requests of 2,000 and 200 tokens.
    assert api["usd_per_1k_requests"]["at_load"] == pytest.approx(2.60)
    assert api["usd_per_year"] == pytest.approx(200 * 31_536 * 2.60)


def test_a_page_of_measurements_holds_its_answer(
    course: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    words = [
        "report",
        "--from",
        course,
        "--ttft",
        "300ms",
        *LIMITED,
        "--spare",
        "1",
        "--cloud",
        "lambda",
        "-o",
        str(page),
    ]
    assert run(words) == 0
    text = page.read_text(encoding="utf-8")
    assert "39 x H100 SXM" in text and "in reserve" in text and "Lambda" in text


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("compare", ["--replace", "8xh100-sxm"]), ("compare", ["--engine", "vllm"]), ("plan", ["--uncertain"]),
        ("plan", ["--move", "a=b"]), ("cost", ["--engine", "vllm"]), ("report", ["--no-verify", "-o", "-"]), ("plan", ["--cloud", "aws"]),
    ],
)  # fmt: skip
def test_what_has_no_meaning_with_rows_is_refused(
    course: str, capsys: pytest.CaptureFixture[str], command: str, option: list[str]
) -> None:
    words = option if "-o" in option or command != "report" else [*option, "-o", "-"]
    assert run([command, "--from", course, "--rps", "10", *words]) == 2
    assert f"{option[0]}: has no effect with --from" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "plan", "cost"])
def test_limits_that_no_row_keeps_are_infeasible_everywhere(
    course: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run([command, "--from", course, "--rps", "10", "--ttft", "1ms"]) == 1
    assert "Not feasible" in capsys.readouterr().out


def test_two_spellings_of_a_model_are_one(course: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(course).read_text(encoding="utf-8").splitlines()
    mixed = tmp_path / "mixed.csv"
    name = "meta-llama/Meta-Llama-3-8B-Instruct"
    mixed.write_text(
        "\n".join([*text[:4], *(line.replace(name, "llama-3-8b") for line in text[4:])]) + "\n", encoding="utf-8"
    )
    assert "llama-3-8b" in mixed.read_text(encoding="utf-8")
    assert said(capsys, "estimate", "--from", str(mixed), "--rps", "10")["deployment"]["gpus"] > 0


def test_random_arrivals_that_end_below_the_measured_rate_say_why(
    course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single closed-loop load serves its rate; random arrivals at less pass beyond that load now and then."""
    header, first, *_ = Path(course).read_text().splitlines()
    Path(course).write_text(f"{header}\n{first}\n")
    assert run(["estimate", "--from", course, "--rps", "9"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "random arrivals vary; at more, loads above the heaviest that was measured" in screen
    assert run(["estimate", "--from", course, "--rps", "9", "--closed-loop", "--max-utilisation", "100%"]) == 0
    assert "requests/s: the heaviest load that was measured" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rps", "50"), "80 % of the rate of the heaviest row within the limit on TTFT"),
        (("--rps", "50", "--max-utilisation", "100%"), "requests/s: the limit on TTFT"),
        (("--concurrency", "200"), "requests in flight: the limit on TTFT"),
    ],
)
def test_a_closed_loop_says_what_its_capacity_is_a_share_of(
    words: tuple[str, ...], said: str, course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", "--from", course, "--ttft", "500ms", "--closed-loop", *words]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_gpus_with_other_arrivals_are_those_of_a_question_with_them(
    course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--from", course, "--ttft", "500ms", "--concurrency", "300")
    random, closed = answer(capsys, *words), answer(capsys, *words, "--closed-loop")
    assert random["deployment"]["other_gpus"] == closed["deployment"]["gpus"]


def test_gpus_with_other_arrivals_follow_from_the_load_of_a_replica(
    course: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of = answer(capsys, "--from", course, "--ttft", "300ms", "--rps", "200")["deployment"]
    assert of["other_gpus"] == of["gpus_per_replica"] * math.ceil(200 / of["other_most"])
    run(["estimate", "--from", course, "--ttft", "300ms", "--rps", "200"])
    told = " ".join(capsys.readouterr().out.split())
    assert "80 % of the rate of the heaviest row within the limits" in told and "$" in told and "a month" in told
    assert "TTFT is longer than at random arrivals" in told  # the rows are of a closed loop


def test_a_workload_that_leaves_no_row_is_named(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--from", course, "chat"]) == 2
    fault = capsys.readouterr().err
    assert fault.startswith("llmsize: workload chat, model: ") and "--model" not in fault
    assert run(["estimate", "--from", course, "--gpu", "l4", "--rps", "1"]) == 2
    fault = capsys.readouterr().err
    assert "--gpu: leaves no measured row" in fault and "did you mean" not in fault


def test_measured_ways_that_follow_the_load_state_their_hours(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--from", course, "--mean-rps", "5", "--ttft", "500ms"]) == 0
    assert "active hours at the peak" in " ".join(capsys.readouterr().out.split())


def test_rows_that_ran_with_drafts_are_said_to_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "id,source,engine,engine_version,model,weight_precision,gpu,n_gpus,tp,isl,osl,mode,concurrency,num_requests,ttft_ms,itl_ms,e2e_ms,req_per_s,notes"
    run_of = "{}{},s,vllm,0.20.2,meta-llama/Llama-3.1-8B-Instruct,bf16,h100-sxm,1,1,1000,200,closed_loop,{},100,60,{},{},{},{}"
    rows = [run_of.format(name, n, n, itl, 60 + 199 * itl, n / (0.06 + 0.199 * itl), note) for name, note, fast in (("a", "", 1), ("b", "speculative decoding: eagle3:3@0.7", 2)) for n, itl in ((1, 8 / fast), (32, 12 / fast))]  # fmt: skip
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    assert run(["estimate", "--from", str(path), "--rps", "30", "--itl", "40ms"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "requests/s; ran with speculative decoding" in said


def test_lengths_that_a_tool_drew_are_one_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "id,engine,model,gpu,tp,isl,osl,mode,concurrency,ttft_ms,itl_ms,req_per_s"
    path = tmp_path / "rows.csv"
    for second, code in (("509.1,513.3", 0), ("509.1,480", 2)):
        runs = [
            "a,vllm,m,h100,1,508.7,534.5,closed_loop,1,50,5,0.36",
            f"b,vllm,m,h100,1,{second},closed_loop,8,60,6,2.5",
        ]
        path.write_text("\n".join([head, *runs]) + "\n", encoding="utf-8")
        assert run(["estimate", "--from", str(path), "--rps", "1", "--closed-loop"]) == code
    assert "2 models and shapes" in capsys.readouterr().err
