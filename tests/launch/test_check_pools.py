"""`llmsize check` of separate pools: checked together, each with its own bounds."""

from __future__ import annotations

import re
from pathlib import Path

import sizing
from sizing.launch.check import check
from sizing.report.check import record, sections
from sizing.specs.launch import Policy


def test_separate_pools_are_checked_together(tmp_path: Path) -> None:
    question = sizing.ask(
        model="llama-3.1-8b", gpu="h100-sxm", isl=1155, osl=211, rps=5, ttft="p95:2s", disaggregate="prefill=1xtp1,decode=1xtp1"
    )  # fmt: skip
    outcome = sizing.estimate(question, simulated=False, relaxed=False)
    path = tmp_path / "k.yaml"
    path.write_text(sizing.deploy(outcome, "kubernetes").text, encoding="utf-8")
    demand = tmp_path / "demand.yaml"
    demand.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 1155, osl: 211}\ndemand: {requests_per_s: 5}\nlimits: {ttft: p95:2s}\n",
        encoding="utf-8",
    )
    (found,) = check(str(path), demand=str(demand), simulated=False)
    assert found.passed and found.gpus == 2 and len(found.parts) == 2
    (facts, *_) = sections(record([found]))
    assert "2 x h100-sxm: 1 x TP1 (prefill) + 1 x TP1 (decode), vllm:" in str(facts)
    assert found.held is not None and found.held.utilisation is not None
    policy = Policy(max_utilisation=found.held.utilisation * 0.4)
    (missed,) = (
        each
        for each in check(str(path), demand=str(demand), policy=policy, simulated=False)[0].findings
        if each.level == "error"
    )
    named = re.search(
        r"; (\d+) prefill and (\d+) decode replicas \((\d+) GPUs\) of this layout would do", missed.message
    )
    assert named is not None and int(named[1]) + int(named[2]) == int(named[3]) > 2
    texts = path.read_text(encoding="utf-8").split("replicas: 1\n")
    path.write_text(f"{texts[0]}replicas: {named[1]}\n{texts[1]}replicas: {named[2]}\n{texts[2]}", encoding="utf-8")
    assert check(str(path), demand=str(demand), policy=policy, simulated=False)[0].passed


def test_pools_that_are_too_few_miss_their_limits_by_name(tmp_path: Path) -> None:
    path = tmp_path / "pools.sh"
    start = '# llmsize/replicas=1 llmsize/gpu=h100-sxm\nvllm serve llama-3.1-8b --max-model-len 1366 --kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"kv_{}"}}\'\n'
    path.write_text(start.format("producer") + start.format("consumer"), encoding="utf-8")
    demand = tmp_path / "demand.yaml"
    text = "model: llama-3.1-8b\ntokens: {{isl: 1155, osl: 211}}\ndemand: {{requests_per_s: {}}}\nlimits: {{ttft: p95:900ms, itl: 8ms}}\n"
    levels, messages = {}, {}
    for rate in (2, 33, 300):
        demand.write_text(text.format(rate), encoding="utf-8")
        (found,) = check(str(path), demand=str(demand), simulated=False)
        levels[rate] = {each.rule: each.level for each in found.findings if each.rule in ("demand", "ttft", "itl")}
        messages[rate] = next(each.message for each in found.findings if each.rule == "demand")
        (written,) = record([found]).deployments
        assert written.chance is None and written.why_no_chance == "no published runs of separate pools"
        assert "Chance" in str(next(sections(record([found]))))
    assert levels[2] == {"demand": "ok", "ttft": "ok", "itl": "ok"}
    assert levels[33] == levels[300] == {"demand": "error", "ttft": "error", "itl": "error"}
    assert (written.ttft_ms, written.itl_ms) == (None, None)  # a queue that grows has no latencies
    assert "ITL reaches its limit" in messages[33] and "the queue grows without end" in messages[300]


def test_each_pool_keeps_its_own_all_to_all(tmp_path: Path) -> None:
    start = "# llmsize/replicas=1 llmsize/gpu=h200-sxm\nsglang serve --model-path deepseek-r1 --disaggregation-mode {} --tp-size 8 --ep-size 8 --attn-dp-size 8 {}\n"
    demand = tmp_path / "demand.yaml"
    demand.write_text("model: deepseek-r1\ntokens: {isl: 4000, osl: 1000}\ndemand: {requests_per_s: 1}\n", encoding="utf-8")  # fmt: skip

    def backends(prefill: str, decode: str) -> tuple[str, ...]:
        path = tmp_path / "pools.sh"
        path.write_text(start.format("prefill", prefill) + start.format("decode", decode), encoding="utf-8")
        (found,) = check(str(path), demand=str(demand), simulated=False)
        assert found.held is not None and found.held.answer is not None
        return tuple(pool.replica.settings.all2all_backend for pool in found.held.answer.pools)

    gather, low = "--moe-a2a-backend none", "--moe-a2a-backend deepep --deepep-mode low_latency"
    normal = "--moe-a2a-backend deepep --deepep-mode normal"
    assert backends(gather, low) == ("allgather", "low_latency")
    assert backends(normal, low) == ("high_throughput", "low_latency")
    assert backends("", low) == ("allgather", "low_latency")  # what one states says nothing of the other
    assert backends(normal, "") == ("high_throughput", "allgather")


def test_each_pool_may_bound_what_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "pools.sh"
    start = "# llmsize/replicas=2 llmsize/gpu=h100-sxm\nsglang serve --model-path llama-3.1-8b --disaggregation-mode {} --context-length 8192 {}\n"
    path.write_text(
        start.format("prefill", "--chunked-prefill-size 4096") + start.format("decode", "--max-running-requests 64"),
        encoding="utf-8",
    )
    demand = tmp_path / "demand.yaml"
    demand.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 1155, osl: 211}\ndemand: {requests_per_s: 2}\n", encoding="utf-8"
    )
    (found,) = check(str(path), demand=str(demand), simulated=False)
    assert found.held is not None and found.held.answer is not None
    prefill, decode = (pool.replica.settings for pool in found.held.answer.pools)
    assert prefill.max_num_batched_tokens == 4096 != decode.max_num_batched_tokens
    assert decode.max_num_seqs == 64 != prefill.max_num_seqs
    assert found.findings[0].message.startswith("prefill: ")
