"""Variables of Compose come from its defaults and from .env; a unit of systemd and the file of Ray Serve are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, MODEL, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.documents import entries
from sizing.launch.identity import UserFacts
from sizing.launch.manifests import OF_COMPOSE, ONE_REPLICA
from sizing.launch.script_text import with_variables

ON = UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${TP:-4} ${TP-4} ${SET:-4} $SET ${SET}", "4 4 2 2 2"),
        ("${EMPTY:-4}|${EMPTY-4}", "4|"),
        ("${SET:?say it} ${TP:?say it} ${TP?}", "2 ${TP:?say it} ${TP?}"),
        ("${SET:+yes}${TP:+no} ${A:-${B:-7}}", "yes 7"),
        ("$$SET $(SET) $(TP) $TP", "$$SET 2 $(TP) $TP"),  # Kubernetes writes $(SET)
        ('${SET:+--config {"a":{"b":1}}}', '--config {"a":{"b":1}}'),
    ],
)
def test_variables_become_what_a_shell_and_compose_make_of_them(text: str, becomes: str) -> None:
    assert with_variables(text, {"SET": "2", "EMPTY": ""}) == becomes


def test_a_file_of_variables_is_read_as_compose_reads_it() -> None:
    lines = [
        "# TP=1",
        "TP=4 # cards",
        "export LEN = '8192'",
        'NAME="a # b"',
        "no entry",
        "EMPTY=",
        "TWO=${TP}/2",
        "RAW='${TP}'",
    ]
    plain = {"TP": "4", "LEN": "8192", "NAME": "a # b", "EMPTY": ""}
    assert entries(lines) == {**plain, "TWO": "4/2", "RAW": "${TP}"}


def service(command: str, more: str = "") -> str:
    return f"services:\n  chat:\n    image: {IMAGE}\n    command: {command}\n    gpus: [{{count: 4}}]\n{more}"


def test_compose_takes_variables_from_env_beside_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MODEL=llama-3.1-8b\nTP=4\n")
    (tmp_path / "own.env").write_text("LEN=4096\nTP=8\n")  # of the container, which Compose does not read
    text = service("bash -c 'vllm serve ${MODEL:?} -tp ${TP:-2} --max-model-len $$LEN'", "    env_file: own.env\n")
    text = text.replace("command: bash", "entrypoint: bash")
    found = only(existing(written(tmp_path, text, "compose.yaml"), ON._replace(engine=None)))
    assert found.launched.model == "llama-3.1-8b"
    assert (found.launched.serving.tp, found.launched.serving.max_model_len) == (4, 4096)
    assert OF_COMPOSE.format("MODEL, TP") in found.assumed


def test_replicas_that_nothing_states_may_be_said(tmp_path: Path) -> None:
    pod = f"""
kind: Pod
metadata: {{name: chat}}
spec:
  containers:
    - image: {IMAGE}
      args: [--model, llama-3.1-8b]
      resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
    path, alone = written(tmp_path, pod), ON._replace(engine=None, replicas=None)
    found, said = only(existing(path, alone)), only(existing(path, alone._replace(replicas=4)))
    assert (found.launched.replicas, said.launched.replicas) == (1, 4)
    assert ONE_REPLICA in found.assumed and ONE_REPLICA not in said.assumed


def test_a_required_variable_that_nothing_states_is_told(tmp_path: Path) -> None:
    text = service("--model llama-3.1-8b -tp ${TP:?how many cards}")
    (told,) = faults(written(tmp_path, text, "compose.yaml"), ON._replace(engine=None))
    assert "${TP:?how many cards}" in told and ":4:" in told


UNIT = """\
# llmsize/gpu=h100-sxm llmsize/replicas=2
[Unit]
Description=vllm serve nothing \\
  at all
[Service]
Environment="TP=4" LEN=8192
Environment=NAME=x
ExecStartPre=/usr/bin/vllm serve llama-3.1-70b
ExecStart=-/opt/vllm/bin/vllm serve llama-3.1-8b \\
  --tensor-parallel-size ${TP} \\
  --max-model-len $LEN
Restart=always
"""


def test_a_unit_of_systemd_is_read_as_its_command(tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, UNIT, "vllm.service"), UserFacts(engine="vllm:0.12.0")))
    assert (found.launched.serving.tp, found.launched.serving.max_model_len, found.launched.replicas) == (4, 8192, 2)
    assert (found.line("command"), found.line("tp")) == (9, 10)


def test_a_unit_without_a_command_of_an_engine_is_told(tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, f"[Container]\nImage={IMAGE}\nExec=--model llama-3.1-8b\n", "v.container"), ON)
    assert "no command of an engine" in told


RAY = """\
applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: chat, model_source: llama-3.1-8b}
      engine_kwargs:
        tensor_parallel_size: 2
        enable_prefix_caching: false
        max_model_len: 8192
      accelerator_type: H100
      deployment_config: SIZE
"""
HELD = "kind: RayService\nmetadata: {name: svc}\nspec:\n  serveConfigV2: |\n"


@pytest.mark.parametrize("size", ["{num_replicas: 3}", "{autoscaling_config: {min_replicas: 3, max_replicas: 9}}"])
@pytest.mark.parametrize("held", [False, True])
def test_the_file_of_ray_serve_is_read(size: str, held: bool, tmp_path: Path) -> None:
    text = RAY.replace("SIZE", size)
    text = HELD + "".join(f"    {line}\n" for line in text.splitlines()) if held else text
    found = only(existing(written(tmp_path, text, "serve.yaml"), UserFacts(engine="vllm:0.12.0")))
    launched = found.launched
    assert (launched.name, launched.model, launched.gpu, launched.replicas) == ("chat", "llama-3.1-8b", "h100-sxm", 3)
    assert (launched.serving.tp, launched.serving.prefix_caching) == (2, False)
    assert found.line("tp") == 8 + 4 * held
    slower = "Ray Serve's proxies are not modelled: published runs behind them have an ITL 1.2 to 1.45 times that of vLLM alone"
    assert slower in found.assumed


def test_an_argument_of_ray_serve_that_is_no_flag_is_told(tmp_path: Path) -> None:
    text = RAY.replace("SIZE", "{num_replicas: 1}").replace("max_model_len", "max_modellen")
    told = faults(written(tmp_path, text, "serve.yaml"), UserFacts(engine="vllm:0.12.0"))
    assert any(":10: --max-modellen" in each for each in told)


def test_a_container_that_prepares_a_pod_is_no_deployment(tmp_path: Path) -> None:
    one = f"{{image: {IMAGE}, args: [--model, llama-3.1-8b, -tp, '2']}}"
    text = f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  initContainers: [MORE]\n  containers: [{one}]\n"
    warm = f"{{image: {IMAGE}, args: [--model, llama-3.1-70b]MORE}}"
    asked = ON._replace(engine=None)
    assert only(existing(written(tmp_path, text.replace("MORE", warm.replace("MORE", ""))), asked)).launched.serving.tp
    sidecar = warm.replace("]MORE", ", --port, '1'], restartPolicy: Always")
    assert len(existing(written(tmp_path, text.replace("MORE", sidecar)), asked)) == 2


def test_the_image_s_own_command_takes_a_model_without_a_flag(tmp_path: Path) -> None:
    text = f"kind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n    args: [meta-llama/Llama-3.1-8B, -tp, '2']\n"
    found = only(existing(written(tmp_path, text), ON._replace(engine=None)))
    assert (found.launched.model, found.launched.serving.tp) == ("meta-llama/Llama-3.1-8B", 2)
    (told,) = faults(written(tmp_path, f"{text}    command: [download]\n"), ON._replace(engine=None))
    assert "no command of an engine" in told


def test_values_of_a_chart_in_a_text_of_argo_are_read(tmp_path: Path) -> None:
    values = f"modelSpec:\n- {{name: a, repository: {IMAGE}, modelURL: llama-3.1-8b, vllmConfig: {{tensorParallelSize: 2}}}}\n"
    text = "kind: Application\nspec:\n  source:\n    helm:\n      values: |\n"
    text += "".join(f"        {line}\n" for line in values.splitlines())
    found = only(existing(written(tmp_path, text), ON._replace(engine=None)))
    assert found.launched.serving.tp == 2 and found.line("tp") == 7


# What is loaded from other files, or stands in them, is read or told.


@pytest.mark.parametrize(
    "settings",
    [
        "EnvironmentFile=-/etc/svc.env\nEnvironment=TP=2\nExecStart=SERVE -tp ${TP}",
        "ExecStart=SERVE -tp 1\nExecStart=\nEnvironment=TP=4\nExecStart=SERVE -tp ${TP}",
        'Environment="ARGS=-tp 4"\nExecStart=SERVE $ARGS $GONE --download-dir %h/models',
        "Environment=TP=4 CUDA_VISIBLE_DEVICES=%i\nExecStart=/bin/sh -c 'exec SERVE -tp ${N:-$TP}'",
    ],
)
def test_a_unit_is_read_as_systemd_reads_it(settings: str, tmp_path: Path) -> None:
    written(tmp_path, "TP=4\n", "svc.env")
    text = f"[Service]\n{settings}\n".replace("SERVE", f"vllm serve {MODEL}")
    assert only(existing(written(tmp_path, text, "app@.service"), ON)).launched.serving.tp == 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("EnvironmentFile=/etc/gone.env\nEnvironment=TP=2\nExecStart=SERVE -tp ${TP}", "4: $TP may be set by /etc/gone.env (line 2)"),
        ('Environment="ARGS=-tp 4"\nExecStart=SERVE ${ARGS}', "3: -tp 4: is not known of"),
        ("ExecStart=SERVE -tp ${TP:-2}", "2: ${TP:-2}: is no syntax of systemd"),
        ("ExecStart=SERVE -tp %i", "2: -tp: is known only as it runs"),
    ],
)  # fmt: skip
def test_what_systemd_does_not_make_a_command_of_is_a_fault(settings: str, told: str, tmp_path: Path) -> None:
    text = f"[Service]\n{settings}\n".replace("SERVE", f"vllm serve {MODEL}")
    assert any(f"app.service:{told}" in each for each in faults(written(tmp_path, text, "app.service"), ON))


@pytest.mark.parametrize("helm", ["parameters: [{name: replicaCount, value: '1'}]", "valuesObject: {replicaCount: 1}"])
def test_values_of_argo_beside_others_are_refused(helm: str, tmp_path: Path) -> None:
    text = f"kind: Application\nspec:\n  source:\n    helm:\n      {helm}\n      values: 'replicaCount: 4'\n"
    (told,) = faults(written(tmp_path, text), ON)
    assert ":5: " in told and "takes precedence over `values`" in told


COMPOSED = f"services:\n  a: {{image: 'vllm/vllm-openai:v0.12.0', command: --model {MODEL}, gpus: all%s}}\n"


def test_files_that_compose_needs_are_told(tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, COMPOSED % ", env_file: gone.env"), ON)
    assert "gone.env is not here" in told
    only(existing(written(tmp_path, COMPOSED % ", env_file: [{path: gone.env, required: false}]"), ON))
    written(tmp_path, "services: {}", "compose.override.yaml")
    (told,) = faults(written(tmp_path, COMPOSED % "", "compose.yaml"), ON)
    assert "compose.override.yaml is beside it" in told


def test_services_with_a_profile_do_not_count_beside_others(tmp_path: Path) -> None:
    service = f"image: 'vllm/vllm-openai:v0.12.0', command: --model {MODEL}, gpus: [{{device_ids: ['%s']}}]"
    text = f"services:\n  a: {{{service % 0}}}\n  b: {{{service % 1}, profiles: [debug]}}\n"
    found = only(existing(written(tmp_path, text), ON))
    assert found.launched.replicas == 1 and any(each.endswith("only by it: b") for each in found.assumed)


def test_a_pod_reserves_what_the_containers_before_it_ask_for(tmp_path: Path) -> None:
    text = f"""\
kind: Deployment
apiVersion: apps/v1
spec:
  template:
    spec:
      initContainers: [{{name: warm, resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]
      containers:
      - image: vllm/vllm-openai:v0.12.0
        args: [--model, {MODEL}, -tp, '2']
        resources: {{limits: {{nvidia.com/gpu: 2}}}}
"""
    assert only(existing(written(tmp_path, text), ON)).launched.reserved_gpus == 4
