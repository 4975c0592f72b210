"""What deploy writes: flags of the version, manifests that Kubernetes takes, one answer or nothing."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import sizing
from sizing.answers.answer import Outcome
from sizing.catalog import profiles
from sizing.catalog.shelf import only
from sizing.cli.main import run
from sizing.launch.answer import Checkpoints, as_label
from sizing.launch.check import check
from sizing.launch.deploy import deploy
from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts, gpu_of_label
from sizing.launch.terms import dialect_of
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts

SIZE = ("-g", "h100-sxm", "--no-verify")
DISPATCHED = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
NAMED = Checkpoints("nvidia/Llama-3.1-70B-Instruct-FP8")


def estimated(engine: str = "vllm", **options: Any) -> Outcome:
    return sizing.estimate(sizing.ask("chat", gpu="h100-sxm", engine=engine, **options), simulated=False, relaxed=False)


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["deploy", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_manifests_are_valid_for_kubernetes(engine: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    options = {"kv_precision": "fp8"} if engine == "tensorrt-llm" else {}  # it has no word for a 16-bit cache
    found = list(yaml.safe_load_all(deploy(estimated(engine, **options), checkpoints=NAMED).text))
    assert [each["kind"] for each in found][-2:] == ["Deployment", "Service"]
    for each in found:
        validate.validate(each, "1.33", strict=True)
    (container,) = found[-2]["spec"]["template"]["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(gpus) * found[-2]["spec"]["replicas"] == estimated(engine, **options).best.gpus  # type: ignore[union-attr]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


@pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.19.0", "0.33.0"])
def test_every_flag_is_in_the_table_of_the_version(version: str) -> None:
    text = deploy(estimated(f"vllm:{version}", model="qwen3-30b-a3b", precision="bf16"), "vllm").text
    known = {flag for row in dialect_of("vllm", "vLLM", version).rows for flag in (*row.flags, *row.off)}
    words = shlex.split(text, comments=True)
    assert {word for word in words if word.startswith("-")} <= known
    assert [word for word in words if "=" not in word][:2] == ["vllm", "serve"]


def test_labels_of_nodes_lead_to_their_profile() -> None:
    for gpu, label in only(LaunchFacts).node_labels.items():
        assert gpu_of_label(label, only(LaunchFacts)) == gpu
    assert gpu_of_label("NVIDIA-H100-80GB-HBM4", only(LaunchFacts)) is None


def test_all_flags_of_the_tables_are_told_apart() -> None:
    """No flag is both known and said to change nothing; values of one flag mean one thing."""
    for name in ("vllm", "sglang", "tensorrt-llm"):
        engine = dialect_of(name, name, profiles.load_engine(name)[0].spec.newest).engine
        known = [flag for row in engine.flags for flag in (*row.flags, *row.off)]
        assert not set(known) & {*engine.ignored.values, *engine.ignored.switches}
        for row in engine.flags:
            assert row.flags or row.env or row.file, row
            assert not set(row.also) & set(row.unknown)


def test_an_infeasible_question_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = written(capsys, "chat", *SIZE, "--gpus", "2")
    assert (code, out) == (1, "") and "more than the budget of 2" in err
    assert err.index("2 GPUs serve ") < err.index("the demand takes ") and err.strip().endswith(" a month")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--for", "kubernets"), "did you mean kubernetes?"),
        (("--benchmark", "vlm"), "did you mean vllm?"),
        (("--for", "trtllm"), "--checkpoint: a checkpoint of meta-llama/Llama-3.1-70B-Instruct in fp8 is needed"),
        (("--for", "tensorrt-llm"), "--checkpoint: a checkpoint of meta-llama/Llama-3.1-70B-Instruct in fp8 is needed"),
        (("--for", "sglang", "--engine", "vllm"), "use --engine sglang"),
        (("--speculative", "eagle3:3@0.75"), "--draft-model: eagle3 drafts with a checkpoint of its own"),
        (("--kv-offload", "50%"), "the size of the cache in host memory is not part of the question"),
        (("--precision", "int4"), "a checkpoint of meta-llama/Llama-3.1-70B-Instruct in int4 is needed"),
    ],
)
def test_what_cannot_be_written_is_said(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = written(capsys, "chat", *SIZE, *arguments)
    assert (code, out) == (2, "") and words in err


def test_a_model_of_ones_own_is_started_from_its_folder_and_another_file_asks_for_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    config |= {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    config |= {"torch_dtype": "bfloat16", "tie_word_embeddings": True}
    for name in ("config.json", "odd.json"):
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
    size = ("-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--rps", "1", "--no-verify", "--for", "vllm")
    for given in (folder, folder / "config.json"):
        code, out, _ = written(capsys, "-m", str(given), *size)
        assert code == 0 and f"vllm serve {folder} " in out.replace("\\", " ").replace("\n", " ") + " "
    code, out, err = written(capsys, "-m", str(folder / "odd.json"), *size)
    assert (code, out) == (2, "") and "--checkpoint" in err and "odd.json describes the model" in err
    assert written(capsys, "-m", str(folder / "odd.json"), *size, "--checkpoint", "me/mine")[0] == 0


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "bfloat16"), ("sglang", "bfloat16")])
def test_the_cache_is_that_of_the_prediction_whatever_the_checkpoint_states(
    engine: str, flag: str, tmp_path: Path
) -> None:
    outcome = estimated(engine)
    path = tmp_path / "k.yaml"
    path.write_text(deploy(outcome, engine, checkpoints=NAMED).text, encoding="utf-8")
    assert f"--kv-cache-dtype {flag}" in path.read_text(encoding="utf-8")
    assert outcome.best is not None
    (found,) = check(str(path), demand="chat", simulated=False)
    assert found.held is not None and found.held.answer is not None
    assert found.held.answer.pool.replica.plan.kv_format == outcome.best.pool.replica.plan.kv_format == "bf16"
    own = deploy(outcome, engine).text  # the engine converts a checkpoint that states no cache
    assert "--kv-cache-dtype auto" in own


def test_a_cache_that_an_engine_has_no_word_for_is_refused_with_the_one_that_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("chat", *SIZE, "--for", "trtllm", "--checkpoint", str(NAMED.model))
    code, out, err = written(capsys, *asked)
    assert (code, out) == (2, "") and "has no word for the BF16 KV cache" in err and "--kv-precision fp8" in err
    code, out, err = written(capsys, *asked, "--kv-precision", "fp8")
    assert code == 0 and "dtype: fp8" in out


def test_the_target_s_engine_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = written(capsys, "chat", *SIZE, "--for", "sglang", "--json")
    found = json.loads(out)
    assert code == 0 and (found["engine"], found["target"], found["schema"]) == ("sglang", "sglang", "llmsize.deploy/1")
    assert "python3 -m sglang.launch_server" in found["text"]


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm"])
def test_a_benchmark_drives_the_answer_s_own_load(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = estimated(rps=20)
    text = deploy(outcome, tool=tool).benchmark
    assert text is not None and outcome.best is not None
    benchmark, imported = text.split("\nllmsize import ")
    words = shlex.split(benchmark, comments=True)
    assert (
        {"20", "poisson"} & set(words)
        and any("1155" in word for word in words)
        and any("211" in word for word in words)
    )
    options = shlex.split(imported.replace("\\\n", " "))  # shlex reads a folded line's end as a word
    assert options[options.index("--gpus") + 1] == str(outcome.best.gpus) and options[options.index("--tp") + 1] == "2"
    assert run(["import", *options]) == 2  # every option is one of import's: only the result is not there yet
    assert "not found" in capsys.readouterr().err


def test_requests_in_flight_are_driven_as_such() -> None:
    text = deploy(estimated(concurrency=64, closed_loop=True), tool="vllm").benchmark or ""
    assert "--max-concurrency 64" in text and "--request-rate" not in text


def deepseek(engine: str = "vllm", **sizes: int) -> Outcome:
    question = sizing.ask(model="deepseek-v3", gpu="h100-sxm", isl=1000, osl=200, rps=1, engine=engine, **sizes)
    return sizing.estimate(question, simulated=False, relaxed=False)


@pytest.mark.parametrize(
    ("engine", "sizes", "first", "further"),
    [
        ("vllm", {"tp": 8, "pp": 2}, '--nnodes 2 --master-addr "$HEAD" --node-rank 0', '--node-rank "$RANK" --headless'),
        ("vllm:0.11.0", {"tp": 8, "pp": 2}, "ray start --head --port=6379", 'ray start "--address=$HEAD:6379" --block'),
        ("vllm", {"tp": 1, "dp": 16, "ep": 16}, '--data-parallel-size-local 8 --data-parallel-address "$HEAD"', '--data-parallel-start-rank "$((RANK * 8))" --headless'),
        ("sglang", {"tp": 8, "pp": 2}, '--nnodes 2 --dist-init-addr "$HEAD:20000" --node-rank 0', '--node-rank "$RANK"'),
    ],
)  # fmt: skip
def test_each_node_of_a_replica_has_its_command(engine: str, sizes: dict[str, int], first: str, further: str) -> None:
    outcome = deepseek(engine, **sizes)
    script = " ".join(deploy(outcome, engine.partition(":")[0]).text.replace("\\\n", " ").split())
    begin, end = script.split("# On each of the other nodes:")
    assert first in begin and further in end and "2 nodes with 8 x H100" in begin
    assert "counts on a network of 400 Gbit/s a GPU" in begin
    group = next(yaml.safe_load_all(deploy(outcome).text))
    template = group["spec"]["leaderWorkerTemplate"]
    assert (group["kind"], group["spec"]["replicas"], template["size"]) == ("LeaderWorkerSet", 1, 2)
    pods = [template[name]["spec"] for name in ("leaderTemplate", "workerTemplate")]
    assert [pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods] == ["8", "8"]
    assert ["readinessProbe" in pod["containers"][0] for pod in pods] == [True, False]
    assert "LWS_LEADER_ADDRESS" in str(pods[1]) and "$HEAD" not in str(pods) and "{head}" not in str(pods)
    validate = pytest.importorskip("kubernetes_validate")
    for pod in pods:
        validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, "1.33", strict=True
        )


def test_a_replica_of_a_rack_takes_its_trays() -> None:
    """A GB200 server has four GPUs, whatever its link joins."""
    question = sizing.ask(model="llama-3.1-70b", gpu="gb200", isl=1000, osl=200, rps=1, tp=8)
    text = deploy(sizing.estimate(question, simulated=False, relaxed=False), "vllm").text
    assert "2 nodes with 4 x GB200" in text and "--nnodes 2" in text
    assert "counts on nodes of a replica that NVLink" in text


def test_services_of_compose_have_gpus_of_their_own() -> None:
    """Docker gives each container that asks for two GPUs the first two of the server."""
    text = deploy(estimated(), "compose").text
    services = yaml.safe_load(text)["services"]
    (asked,) = {len(each["deploy"]["resources"]["reservations"]["devices"]) for each in services.values()}
    held = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in services.values()]
    assert asked == 1 and list(services) == ["chat-1", "chat-2", "chat-3", "chat-4"] and "profile" not in text
    assert [int(gpu) for gpus in held for gpu in gpus] == list(range(8))
    many = deploy(estimated(rps=40), "compose").text
    profiles = [each["profiles"] for each in yaml.safe_load(many)["services"].values()]
    assert (
        profiles == [[f"server-{1 + number // 4}"] for number in range(len(profiles))]
        and "docker compose --profile" in many
    )
    amd = sizing.estimate(sizing.ask("chat", gpu="mi300x"), simulated=False, relaxed=False)
    services = yaml.safe_load(deploy(amd, "compose").text)["services"].values()
    assert all("/dev/kfd" in each["devices"] and "deploy" not in each for each in services)
    seen = {each["environment"]["HIP_VISIBLE_DEVICES"] for each in services}
    of_one = len(next(iter(seen)).split(","))
    assert (
        len(seen) == min(8 // of_one, len(services))
        and len({gpu for gpus in seen for gpu in gpus.split(",")}) == len(seen) * of_one
    )


def test_a_slice_is_a_resource_of_its_own() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm:3g.40gb", isl=1000, osl=200, rps=5)
    outcome = sizing.estimate(question, simulated=False, relaxed=False)
    pod = next(yaml.safe_load_all(deploy(outcome).text))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    with pytest.raises(InputError, match="Docker knows a slice by an identifier of its own"):
        deploy(outcome, "compose")


def test_instances_of_pools_state_their_address() -> None:
    question = sizing.ask(
        model="llama-3.1-8b", gpu="h100-sxm", isl=1000, osl=200, rps=5, disaggregate="prefill=1xtp1,decode=1xtp1"
    )
    outcome = sizing.estimate(question, simulated=False, relaxed=False)
    for target, words in (
        ("vllm", '="$(hostname -i)"'),
        ("compose", '="$$(hostname -i)" exec vllm serve'),
        ("kubernetes", "podIP"),
    ):
        assert (
            deploy(outcome, target).text.count("VLLM_NIXL_SIDE_CHANNEL_HOST") == 2
            and words in deploy(outcome, target).text
        )


def test_the_settings_of_two_pools_do_not_overwrite_each_other() -> None:
    outcome = estimated("tensorrt-llm", disaggregate="prefill=1xtp2,decode=1xtp2", kv_precision="fp8", rps=1)
    text = deploy(outcome, "trtllm", checkpoints=NAMED).text
    for role in ("prefill", "decode"):
        assert f"cat > {role}-llm-api.yaml" in text and f"--config {role}-llm-api.yaml" in text


def test_one_launcher_starts_an_instance_of_tensorrt_llm_on_all_its_nodes() -> None:
    script = " ".join(deploy(deepseek("tensorrt-llm", tp=1, dp=16, ep=16), "trtllm").text.replace("\\\n", " ").split())
    assert (
        "srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch trtllm-serve deepseek" in script
    )
    assert "in a folder that all nodes share" in script and "HEAD" not in script
    with pytest.raises(
        InputError, match="16 GPUs takes 2 nodes, which a kubernetes file does not state; allowed: trtllm"
    ):
        deploy(deepseek("tensorrt-llm", tp=1, dp=16, ep=16), "kubernetes")


@pytest.mark.parametrize(
    ("engine", "sizes", "why"),
    [
        ("tensorrt-llm", {"tp": 4, "dp": 4, "ep": 16}, "splits attention over all 16 GPUs of a stage or over none, not over 4"),
        ("vllm", {"tp": 8, "dp": 2, "ep": 8}, "spreads experts over all 16 GPUs of a stage or over none, not over 8"),
    ],
)  # fmt: skip
def test_a_layout_that_an_engine_has_no_words_for_is_no_answer(engine: str, sizes: dict[str, int], why: str) -> None:
    (refused,) = deepseek(engine, **sizes).refusals
    assert why in refused.detail


def test_a_compose_file_has_no_more_services_than_a_check_reads() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu="l4", isl=1000, osl=200, rps=10_000)
    with pytest.raises(InputError, match=r"each of the [\d,]+ replicas, more than `llmsize check` reads"):
        deploy(sizing.estimate(question, simulated=False, relaxed=False), "compose")


@pytest.mark.parametrize("target", ["kserve", "compose"])
def test_targets_of_one_node_say_so(target: str) -> None:
    with pytest.raises(InputError, match=f"a replica of 16 GPUs takes 2 nodes, which a {target} file does not state"):
        deploy(deepseek(tp=8, pp=2), target)
    pools = sizing.ask(
        model="deepseek-v3", gpu="h100-sxm", isl=1000, osl=200, rps=1, disaggregate="prefill=1xtp8pp2,decode=1xtp8pp4"
    )  # fmt: skip
    with pytest.raises(InputError, match="a replica of 32 GPUs takes 4 nodes"):
        deploy(sizing.estimate(pools, simulated=False, relaxed=False), target)


def test_what_spreads_requests_over_replicas_is_said() -> None:
    assert "The Service spreads connections" in deploy(estimated()).text
    assert "Put a router in front of them" in deploy(estimated(), "vllm").text
    kept = sizing.ask("chat", gpu="h100-sxm", turns=3, isl_max=6000, think_time="30s", prefix_routing="affinity")
    assert (
        "sends prompts of one beginning to one replica"
        in deploy(sizing.estimate(kept, simulated=False, relaxed=False)).text
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rps", "1000000"), "replicas: must be a whole number above 0 and at most 4,096"),
        (("--checkpoint", ""), "--checkpoint: must not be empty"),
    ],
)
def test_what_no_deployment_may_have_is_one_line(
    options: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = written(capsys, "chat", *SIZE, *options)
    assert (code, out) == (2, "") and err.startswith(f"llmsize: {told}") and err.count("\n") == 1


def test_what_is_written_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.yaml"
    assert written(capsys, "chat", *SIZE) == (0, text := deploy(estimated()).text + "\n", "") and text
    assert written(capsys, "chat", *SIZE, "-o", "-") == (0, text, "")
    assert written(capsys, "chat", *SIZE, "-o", str(path)) == (0, "", "")
    assert path.read_text(encoding="utf-8") == text
    code, _, err = written(capsys, "chat", *SIZE, "-o", str(tmp_path / "none" / "k.yaml"))
    assert code == 2 and "--output" in err


def test_a_library_user_is_told_that_there_is_no_answer() -> None:
    with pytest.raises(InputError, match="there is no answer to start"):
        deploy(estimated(gpus=2))


@pytest.mark.parametrize("gpu", ["b300", "mi355x", "gb10"])
def test_a_gpu_without_a_known_label_is_an_annotation(gpu: str, tmp_path: Path) -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu=gpu, isl=500, osl=100, rps=1)
    path = tmp_path / "k.yaml"
    path.write_text(deploy(sizing.estimate(question, simulated=False, relaxed=False)).text, encoding="utf-8")
    (found,) = existing(str(path), UserFacts())
    assert found.launched.gpu == gpu


@pytest.mark.parametrize("name", ["My_Chat.v2", "x" * 90, "...", "données 1"])
def test_names_are_those_that_kubernetes_takes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", as_label(name))


def test_a_generating_model_that_classifies_is_converted() -> None:
    for task, model, converted in (("classify", "llama-3.1-8b", True), ("embed", "llama-3.1-8b", False), ("classify", "BAAI/bge-large-en-v1.5", False)):  # fmt: skip
        question = sizing.ask(model=model, task=task, gpu="h100-sxm", isl=400, rps=1)
        text = sizing.deploy(sizing.estimate(question, simulated=False, relaxed=False), "vllm").text
        assert "--runner pooling" in text and ("--convert classify" in text) is converted


def test_a_rank_sends_no_more_tokens_to_experts_than_it_is_told() -> None:
    """DeepEP asserts it: SGLang stops where more sequences of a rank run."""
    found = deploy(deepseek("sglang", tp=1, dp=16, ep=16), "kubernetes").text
    pods = [each for each in yaml.safe_load_all(found) if each and each["kind"] == "LeaderWorkerSet"]
    template = pods[0]["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        (container,) = template[name]["spec"]["containers"]
        sent = {each["name"]: each.get("value") for each in container["env"]}[DISPATCHED]
        running = container["args"][container["args"].index("--max-running-requests") + 1]
        assert int(running) == 16 * int(sent)
        assert container["args"][container["args"].index("--deepep-mode") + 1] == "auto"
    assert DISPATCHED not in deploy(deepseek("sglang", tp=8, pp=2), "sglang").text


def test_an_adapter_has_a_rank_that_the_engine_takes_and_is_loaded_by_name() -> None:
    assert "# Name the adapters: --lora-modules" in deploy(estimated(lora="4x32"), "vllm").text
    with pytest.raises(InputError, match="rank 20 in slots of rank 32; allowed: 4x32"):
        deploy(estimated(lora="4x20"), "vllm")
    line = "vllm serve llama-3.1-8b --enable-lora --max-lora-rank 20"
    with pytest.raises(InputError, match="--max-lora-rank: takes no 20"):
        existing(line, UserFacts(gpu="l4", replicas=1))


def test_a_benchmark_whose_prompts_grow_on_their_way_asks_for_more_room() -> None:
    found = {tool: deploy(estimated(), "vllm", tool=tool).benchmark or "" for tool in ("vllm", "aiperf", "guidellm")}
    assert all("start the engine for" not in each for each in found.values())  # chat has longer requests than its mean
    question = sizing.ask(model="llama-3.1-8b", gpu="l4", isl=500, osl=100, rps=2)
    outcome = sizing.estimate(question, simulated=False)
    more = {tool: "start the engine for" in (deploy(outcome, "vllm", tool=tool).benchmark or "") for tool in found}
    assert more == {"vllm": False, "aiperf": True, "guidellm": True}
