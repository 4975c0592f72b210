"""Embedding, classification and scoring: no output head, no tokens out, and never slower than generating one token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import ask, engine_of, real_gpu, real_model
from hypothesis import given
from hypothesis import strategies as st
from optimised_builders import load_of

from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.model import architecture, memory, precision
from sizing.model.architecture import Layout, Shard
from sizing.model.footprint import forward_bytes, weight_bytes
from sizing.model.memory import MemoryUse
from sizing.replica import replica
from sizing.replica.capacity import most_of
from sizing.replica.kernels import Kernels
from sizing.replica.step import Batch, step
from sizing.specs.data import Formats
from sizing.specs.model import Model
from sizing.specs.units import GIB

EMBEDDING = 151_936 * 4096  # of Qwen3-8B, and its output head, which is not tied
# 36 layers of qkv 4096*6144, o 4096*4096, MLP 3*4096*12288 and two norms, and a norm at the end
LAYERS = 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12_288 + 2 * 4096) + 4096
ASKED = ("-m", "qwen3-8b", "-g", "h100-sxm", "--isl", "512", "--rps", "100")


def pooled(name: str) -> Model:
    return replace(real_model(name), pooled=True)


def kernels_of(model: Model, layout: Layout) -> Kernels:
    request, gpu = ask(model, engine="vllm:0.19.0"), real_gpu("h100-sxm")
    settings = replica.resolve_settings(request.service, gpu, layout)
    plan = precision.plan(model, gpu, settings, shelf.only(Formats))
    return Kernels(
        gpu,
        engine_of("vllm:0.19.0")[0].name,
        Shard(model, layout, settings, plan),
    )


def held(model: Model) -> MemoryUse:
    by = kernels_of(model, Layout())
    return memory.use(by.shard, by.gpu, 4096)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- memory by hand ---------------------------------------------------------------------------------------------------------


def test_the_weights_of_an_embedder_by_hand() -> None:
    """Qwen3-8B in 16 bit without its head: 2*(6,946,066,432 + 622,329,856) = 15.14e9 bytes; with it 16.38e9. Beside them the
    tables of rotary embeddings, 128 values for each of 40,960 positions.
    """
    tables = 2 * 128 * 40_960
    assert held(pooled("qwen3-8b")).weights_gib * GIB == pytest.approx(2 * (LAYERS + EMBEDDING) + tables, rel=1e-4)
    whole = held(real_model("qwen3-8b")).weights_gib * GIB
    assert whole == pytest.approx(2 * (LAYERS + 2 * EMBEDDING) + tables, rel=1e-4)


def test_a_tied_embedding_is_held_all_the_same() -> None:
    """It is the input's; only the copy that a pipeline's last stage has for its logits is not."""
    name = "qwen3-0.6b"
    assert real_model(name).tied_embeddings
    assert held(pooled(name)).weights_gib == held(real_model(name)).weights_gib
    embedding = 2 * 151_936 * 1024
    by = kernels_of(real_model(name), Layout(pp=2))
    last = architecture.stages(real_model(name), 2, by.settings.pp_remainder)[-1]
    generating, pooling = (
        weight_bytes(replace(by.shard, model=model), last) for model in (real_model(name), pooled(name))
    )
    assert generating - pooling == pytest.approx(embedding)


def test_there_are_no_logits_to_make_room_for() -> None:
    """The profile run peaks in the layers, and what was the logits' goes to the cache."""
    of, base = held(pooled("qwen3-0.6b")), held(real_model("qwen3-0.6b"))
    by = kernels_of(pooled("qwen3-0.6b"), Layout())
    peak = forward_bytes(by.shard, by.settings.max_num_batched_tokens)
    assert of.activation_gib * GIB == peak
    assert of.kv_cache_gib - base.kv_cache_gib == pytest.approx(base.activation_gib - of.activation_gib)
    assert base.activation_gib > of.activation_gib


@pytest.mark.parametrize("head", [True, False])
def test_an_index_may_count_a_head_that_is_not_loaded(head: bool) -> None:
    """Of a checkpoint that generates or of one that embeds: the weights on the GPU are the same."""
    total = 2 * (LAYERS + EMBEDDING * (2 if head else 1))
    of = replace(pooled("qwen3-8b"), checkpoint_bytes=total, checkpoint_ratio=1.5)
    assert held(of).weights_gib == pytest.approx(held(pooled("qwen3-8b")).weights_gib, rel=1e-4)


# --- laws -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-0.6b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("tp", [1, 2])
@given(sequences=st.integers(1, 64), tokens=st.integers(1, 4000))
def test_a_step_that_pools_is_never_longer_than_one_that_generates(
    name: str, tp: int, sequences: int, tokens: int
) -> None:
    layout = Layout(tp=tp)
    batch = Batch(prefill_sequences=float(sequences), prefill_tokens=float(tokens), finishing=float(sequences))
    generating, pooling = (step(kernels_of(model, layout), batch) for model in (real_model(name), pooled(name)))
    assert pooling.total_s <= generating.total_s
    assert pooling.gpu_s < generating.gpu_s
    assert not {o.operation.name for o in pooling.operations} & {"lm_head", "sample", "logits_all_gather"}


@pytest.mark.parametrize("isl", [32, 512, 8000])
def test_a_replica_serves_at_least_as_many_and_none_of_them_later(isl: int) -> None:
    found = []
    for model in (real_model("qwen3-8b"), pooled("qwen3-8b")):
        request = ask(model, isl=isl, osl=1, serving={"tp": 1})
        _, load = load_of(request)
        most = most_of([load], request.target)[0]
        assert most is not None
        found.append((load, most))
    (generating, fewer), (pooling, more) = found
    assert pooling.solo_ttft_s <= generating.solo_ttft_s
    assert more.requests_per_s >= fewer.requests_per_s * (1 - 1e-3)  # tables of steps are good to a thousandth
    assert pooling.solo_itl_s == 0


# --- the command line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["embed", "classify", "score", "EMBED"])
def test_what_pools_is_counted_by_its_inputs(capsys: pytest.CaptureFixture[str], task: str) -> None:
    found = answer(capsys, "estimate", *ASKED, "--task", task, "--no-verify")
    assert (found["inputs"]["task"], found["inputs"]["osl"]) == (task.lower(), 0)
    assert found["inputs"]["max_model_len"] == 512
    throughput, cost = found["throughput"], found["cost"]
    assert throughput["output_tokens_per_s"] == 0
    assert throughput["input_tokens_per_s"] == throughput["total_tokens_per_s"] == pytest.approx(51_200)
    assert cost["usd_per_million_output_tokens"] is None
    assert cost["kwh_per_million_output_tokens"] is None
    assert cost["usd_per_million_input_tokens"] == pytest.approx(cost["usd_per_hour"] / (51_200 * 3600) * 1e6)
    assert all(value is None for value in found["latency"]["itl_ms"].values())
    assert found["latency"]["e2e_ms"] == found["latency"]["ttft_ms"]
    assert all(path.startswith("memory.") for path in found["bands"])  # published runs generated
    assert "--task" in found["simulate_command"]
    assert "--osl" not in found["simulate_command"]


def test_the_command_that_is_offered_drives_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    command = answer(capsys, "estimate", *ASKED, "--task", "embed")["simulate_command"]
    again = answer(capsys, *command.split()[1:], "--requests", "200")
    assert (again["inputs"]["task"], again["inputs"]["isl"], again["inputs"]["osl"]) == ("embed", 512, 0)
    assert again["output_tokens_per_s"] == 0
    assert all(path.startswith("memory.") for path in again["bands"])


def test_a_table_speaks_of_no_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", *ASKED, "--task", "embed", "--no-verify"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ISL 512, embed" in text
    assert "output tokens" not in text
    assert "OSL" not in text


def test_a_trace_gives_prompts_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input_length,output_length\n" + "".join(f"{n * 50},500,300\n" for n in range(40)))
    arguments = ("simulate", "-m", "qwen3-8b", "-g", "h100-sxm", "--trace", str(trace))
    of, base = answer(capsys, *arguments, "--task", "embed"), answer(capsys, *arguments)
    assert of["e2e_ms"]["mean"] == of["ttft_ms"]["mean"]
    assert of["itl_ms"]["mean"] is None
    assert base["e2e_ms"]["mean"] > 10 * of["e2e_ms"]["mean"]


def test_a_prompt_may_take_every_position(capsys: pytest.CaptureFixture[str]) -> None:
    """40,960 positions: as many prompt tokens, where no token follows."""
    arguments = ["estimate", "-m", "qwen3-8b", "-g", "h100-sxm", "--isl", "40960", "--rps", "0.1", "--no-verify"]
    assert run([*arguments, "--task", "embed"]) == 0
    assert run([*arguments, "--osl", "1"]) == 2
    assert "40,961" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--osl", "20"), "--osl: embed gives no tokens"),
        (("--speculative", "eagle3"), "--speculative: embed decodes nothing"),
        (("--disaggregate", "auto"), "nothing decodes"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], asked: tuple[str, ...], said: str) -> None:
    assert run(["estimate", *ASKED, "--task", "embed", *asked]) == 2
    assert said in capsys.readouterr().err


def test_documents_are_no_users(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody thinks between two documents; who states users asks for their reading."""
    asked = ["estimate", "-m", "qwen3-8b", "-g", "h100-sxm", "--isl", "512", "--no-verify"]
    for rest in (("--task", "embed", "--rps", "5"), ("--osl", "100", "--rps", "5", "--mode", "offline")):
        assert run([*asked, *rest]) == 0
        said = capsys.readouterr().out
        assert (
            "in flight" in said and "who think" not in said and "daily active" not in said and "/user/day" not in said
        )
    assert run([*asked, "--task", "embed", "--dau", "100k"]) == 0
    assert "100,000 daily active users" in " ".join(capsys.readouterr().out.split())


def test_a_ready_workload_is_told_by_the_option_that_changes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "offline-batch", "-m", "bge-m3", "-g", "l4", "--no-verify"]) == 2
    assert "--osl: embed gives no tokens; allowed: 1, its result (--osl 1)" in capsys.readouterr().err
    assert run(["estimate", "offline-batch", "-m", "bge-m3", "-g", "l4", "--no-verify", "--osl", "1"]) == 0


def test_other_reports_speak_of_inputs_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ("-m", "qwen3-8b", "-g", "h100-sxm", "--isl", "512", "--task", "embed")
    curve = answer(capsys, "curve", *where, "--tp", "1", "--concurrency", "1,8")
    assert (curve["inputs"]["task"], curve["inputs"]["osl"]) == ("embed", 0)
    for point in curve["lines"][0]["points"]:
        assert point["output_tokens_per_s_per_gpu"] == 0
        assert point["bands"] == {}
    for command in ("whatif", "compare", "cost", "plan"):
        assert run([command, *where, "--rps", "50", *(() if command == "plan" else ("--json",))]) == 0
        assert "NaN" not in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert run(["report", *where, "--rps", "50", "-o", str(page)]) == 0
    text = page.read_text()
    assert "per million input tokens" in text
    assert "million output" not in text


def test_a_workload_states_its_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "embed.yaml"
    file.write_text("model: qwen3-8b\ntask: embed\ntokens: {isl: 512}\ndemand: {requests_per_s: 100}\n")
    of = answer(capsys, "estimate", str(file), "-g", "h100-sxm", "--no-verify")
    assert of["deployment"] == answer(capsys, "estimate", *ASKED, "--task", "embed", "--no-verify")["deployment"]
    file.write_text(file.read_text().replace("task: embed\n", ""))
    assert run(["estimate", str(file), "-g", "h100-sxm"]) == 2
    assert "osl" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("memory",), ("step", "--prefill", "512")])
def test_one_layout_may_be_looked_at(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    where = (*command, "-m", "qwen3-8b", "-g", "h100-sxm")
    of, base = answer(capsys, *where, "--task", "embed"), answer(capsys, *where)
    assert (of["inputs"]["task"], base["inputs"]["task"]) == ("embed", "generate")
    assert any(one["what"] == "output head" for one in of["assumptions"])
    assert of != base


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("estimate", "--isl", "500", "--rps", "3", "--osl-max", "10"), "--osl-max"),
        (("simulate", "--isl", "500", "--rps", "3", "--osl-std", "10"), "--osl-std"),
        (("step", "--decode", "5", "--context", "100"), "--decode"),
    ],
)
def test_nothing_is_generated_whatever_asks_for_it(
    arguments: tuple[str, ...], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "-m", "qwen3-8b", "-g", "h100-sxm", "--task", "embed"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"llmsize: {field}: embed ")


# --- one word for the cache that an encoder does not keep --------------------------------------------------------------------


def test_an_encoder_has_no_cache_in_any_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("-m", "BAAI/bge-m3", "-g", "l4")
    for command in (
        ("memory",),
        ("roofline",),
        ("step", "--prefill", "400"),
        ("estimate", "--isl", "500", "--rps", "1"),
    ):
        assert run([*command, *asked]) == 0
        told = capsys.readouterr().out
        assert "weights, no KV cache" in told and "FP16 KV" not in told and "K KV cache" not in told
        assert answer(capsys, *command, *asked)["inputs"]["kv_precision"] == "none"


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (("memory", "--kv-precision", "fp8"), "--kv-precision"),
        (("estimate", "--isl", "500", "--rps", "1", "--prefix-hit", "0.5"), "--prefix-hit"),
        (("step", "--decode", "4", "--context", "100"), "--decode"),
        (("roofline", "--batch", "4"), "--batch"),
    ],
)
def test_what_acts_on_a_cache_is_refused_for_an_encoder(
    command: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "-m", "BAAI/bge-m3", "-g", "l4"]) == 2
    assert capsys.readouterr().err.startswith(f"llmsize: {flag}: ")


def test_trials_of_an_encoder_are_none_of_caches(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "whatif", "-m", "BAAI/bge-m3", "-g", "l4", "--isl", "500", "--rps", "10", "--no-verify")
    names = {one["name"] for one in (*found["options"], *found["not_possible"])}
    assert "fp8-weights" in names and not names & {"prefix-caching", "kv-offload", "fp8-cache"}
