"""What is written reads back to the same: every engine, version, layout and target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sizing
from sizing.catalog import profiles
from sizing.launch.arguments import Source, read
from sizing.launch.deploy import ENGINES, WRITERS, deploy
from sizing.launch.identity import UserFacts
from sizing.launch.terms import Dialect, Word, data_of, dialect_of, layout_of, terms_of, write
from sizing.specs.errors import InputError
from sizing.specs.launch import Launched
from sizing.specs.optimisations import Lora, Speculative
from sizing.specs.workload import Serving

VERSIONS = {
    "vllm": ("0.9.2", "0.12.0", "0.33.0"),
    "sglang": ("0.4.9", "0.5.9", "0.5.23"),
    "tensorrt-llm": ("1.0.0", "1.4.0"),
}
DENSE: tuple[dict[str, int], ...] = ({"tp": 1}, {"tp": 4}, {"tp": 8, "pp": 2})
EXPERTS: tuple[dict[str, int], ...] = (
    *DENSE,
    {"tp": 8, "ep": 8},
    {"dp": 8, "ep": 8},
    {"tp": 2, "dp": 4, "ep": 8},
    {"dp": 4},
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"memory_fraction": 0.85, "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 4096},
    {"prefix_caching": False, "enforce_eager": True},
)


def dialect(name: str, version: str) -> Dialect:
    return dialect_of(name, profiles.load_engine(name)[0].spec.title, version)


def read_back(launched: Launched, known: Dialect, *, experts: bool) -> Launched:
    args = write(known, terms_of(launched, known))
    files = {} if args.file is None else {"llm-api.yaml": (args.file, 1)}
    found = read(known, [Word(word) for word in args.words], Source("k.yaml", dict(args.env), files))
    assert found.faults == []
    return Launched.model_validate({"model": launched.model, **data_of(found, known, experts=experts, file="k.yaml")})


CASES = [
    (name, version, sizes, settings)
    for name, versions in VERSIONS.items()
    for version in versions
    for sizes in EXPERTS
    for settings in SETTINGS
]


@pytest.mark.parametrize(("name", "version", "sizes", "settings"), CASES)
def test_arguments_read_back_to_the_same(
    name: str, version: str, sizes: dict[str, int], settings: dict[str, Any]
) -> None:
    known = dialect(name, version)
    launched = Launched(model="m", kv_precision="fp8", serving=Serving(**sizes, **settings))
    try:
        again = read_back(launched, known, experts=True)
    except InputError as error:
        assert name == "tensorrt-llm" and sizes.get("dp", 1) > 1 and sizes.get("tp", 1) > 1, error
        return
    assert layout_of(again) == layout_of(launched)
    for field, value in settings.items():
        assert getattr(again.serving, field) == value, field
    assert again.kv_precision == "fp8" and again.role == "whole"


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("spoken", [("mtp", 3), ("ngram", 4), ("eagle3", 3)])
def test_drafts_read_back(name: str, spoken: tuple[str, int]) -> None:
    known = dialect(name, VERSIONS[name][-1])
    launched = Launched(
        model="m", speculative=Speculative(method=spoken[0], tokens=spoken[1]), draft_checkpoint="me/head"
    )
    if spoken[0] != "eagle3":
        launched = launched.model_copy(update={"draft_checkpoint": None})
    again = read_back(launched, known, experts=False)
    assert again.speculative == launched.speculative and again.draft_checkpoint == launched.draft_checkpoint


@pytest.mark.parametrize("name", VERSIONS)
def test_adapters_and_roles_read_back(name: str) -> None:
    known = dialect(name, VERSIONS[name][-1])
    launched = Launched(model="m", lora=Lora(slots=16, rank=64), role="prefill", connector="nixl")
    again = read_back(launched, known, experts=False)
    assert (again.lora, again.role, again.connector) == (launched.lora, "prefill", "nixl")


@pytest.mark.parametrize("name", VERSIONS)
def test_every_written_flag_is_one_of_the_version(name: str) -> None:
    """A flag of a newer version is never written; the fault names the version that has it."""
    known = dialect(name, VERSIONS[name][0])
    for row in known.engine.flags:
        if not known.has(row) and known.writes(row.term) is None and not row.values:
            with pytest.raises(InputError, match="has no flag for it"):
                write(known, {row.term: 2})


# --- whole files ------------------------------------------------------------------------------------------------------

SMALL = "model: llama-3.1-8b\ngpu: h100-sxm\ntokens: {isl: 1000, osl: 200}\ndemand: {requests_per_s: 4}\n"
EXPERT = SMALL.replace("llama-3.1-8b", "qwen3-30b-a3b")
WORKLOADS = {
    "plain": SMALL,
    "several replicas": SMALL.replace("requests_per_s: 4", "requests_per_s: 90"),
    "settings": f"{SMALL}kv_precision: fp8\nserving: {{tp: 2, memory_fraction: 0.8, max_num_seqs: 64, prefix_caching: false, enforce_eager: true}}\n",
    "attention ranks": f"{EXPERT}serving: {{tp: 1, dp: 4, ep: 4}}\n",
    "experts": f"{EXPERT}serving: {{tp: 4, ep: 4}}\n",
    "drafts": f"{SMALL}optimisations: {{speculative: 'ngram:4@0.5'}}\n",
    "adapters": f"{SMALL}optimisations: {{lora: 8x16}}\n",
    "pools": f"{SMALL}optimisations: {{disaggregate: {{prefill: {{tp: 1, replicas: 1}}, decode: {{tp: 2, replicas: 2}}}}}}\n",
    "pools of two types": f"{SMALL}optimisations: {{lora: 4x32, disaggregate: {{prefill: {{gpu: l40s, replicas: 2}}, decode: {{tp: 1, replicas: 1}}}}}}\n",
    "images": f"{SMALL.replace('llama-3.1-8b', 'google/gemma-3-4b-it')}serving: {{memory_fraction: 0.85}}\noptimisations: {{images: 1x512x512}}\n",
    "redundant experts": f"{EXPERT}serving: {{tp: 1, dp: 4, ep: 4, redundant_experts: 4}}\n",
    "nodes": f"{SMALL.replace('llama-3.1-8b', 'deepseek-v3')}serving: {{tp: 8, pp: 2}}\n",
    "nodes of ranks": f"{SMALL.replace('llama-3.1-8b', 'deepseek-v3')}serving: {{tp: 1, dp: 16, ep: 16}}\n",
}  # fmt: skip
OF_ENGINE = {
    name: [target for target in WRITERS if ENGINES.get(target, name) == name]
    for name in ("vllm", "vllm:0.10.2", "sglang", "tensorrt-llm")
} | {"vllm:0.10.2": ["vllm", "kubernetes"]}
# What no file of a target says: of an instance over several nodes; of TensorRT-LLM's, which one launcher starts, no manifest at all.
WITHIN_A_NODE = ("kserve", "compose")
OF_NO_MANIFEST = ("tensorrt-llm",)
UNWRITTEN = {("redundant experts", "tensorrt-llm")}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The file of each workload."""
    folder = tmp_path_factory.mktemp("workloads")
    for name, text in WORKLOADS.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return {name: str(folder / f"{name}.yaml") for name in WORKLOADS}


@pytest.mark.parametrize("engine", OF_ENGINE)
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_deploy_writes_checks_without_a_word_more(
    name: str, engine: str, asked: dict[str, str], tmp_path: Path
) -> None:
    """Every target, under any file name: the same layout, settings and prediction."""
    outcome = sizing.estimate(sizing.ask(asked[name], engine=engine), simulated=False, relaxed=False)
    best = outcome.answer
    assert best is not None
    for number, target in enumerate(OF_ENGINE[engine]):
        path = tmp_path / f"k{('', '.yaml', '.sh', '.txt')[number % 4]}"
        unstated = WITHIN_A_NODE if engine not in OF_NO_MANIFEST else (*WITHIN_A_NODE, "kubernetes")
        if (name.startswith("nodes") and target in unstated) or (name, engine) in UNWRITTEN:
            with pytest.raises(InputError, match=r"nodes|has no flag"):
                deploy(outcome, target)
            continue
        path.write_text(deploy(outcome, target).text, encoding="utf-8")
        demand = asked["plain" if name == "drafts" else name]  # the file itself says how drafts are accepted
        (found,) = sizing.check(str(path), demand=demand, simulated=False)
        assert found.held is not None and found.held.answer is not None, found.findings
        assert [finding for finding in found.findings if finding.level == "warning"] == []
        for pool, again in zip(best.pools, found.held.answer.pools, strict=True):
            assert (again.replica.layout, again.count) == (pool.replica.layout, pool.count)
            assert again.replica.gpu_type.id == pool.replica.gpu_type.id
            running = again.replica.settings.max_num_seqs  # fewer where a rank may send only so many tokens to experts
            assert again.replica.settings == pool.replica.settings.model_copy(update={"max_num_seqs": running})
            assert min(pool.replica.settings.max_num_seqs, pool.capacity.decoding / pool.replica.layout.dp) <= running
            if (
                running < pool.replica.settings.max_num_seqs
            ):  # and more memory is left for the cache than was counted on
                assert again.most_requests_per_s >= pool.most_requests_per_s
                continue
            assert again.replica.memory == pool.replica.memory
            assert again.most_requests_per_s == pytest.approx(pool.most_requests_per_s)


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--runner pooling"), ("sglang", "--is-embedding")])
def test_what_generates_nothing_is_started_and_read_back(engine: str, flag: str, tmp_path: Path) -> None:
    demand = tmp_path / "encoder.yaml"
    demand.write_text(
        "model: BAAI/bge-m3\ntask: embed\ntokens: {isl: 500}\ndemand: {requests_per_s: 200}\n", encoding="utf-8"
    )
    outcome = sizing.estimate(sizing.ask(str(demand), gpu="l4", engine=engine), simulated=False, relaxed=False)
    assert outcome.best is not None
    for target in OF_ENGINE[engine]:
        path = tmp_path / f"{target}.yaml"
        path.write_text(text := deploy(outcome, target).text, encoding="utf-8")
        assert flag.split()[0] in text and "tokens in and" not in text and "prefix-caching" not in text
        (found,) = sizing.check(str(path), demand=str(demand), simulated=False)
        assert found.held is not None and found.held.answer is not None and found.passed
        assert found.held.answer.pool.replica.settings == outcome.best.pool.replica.settings
        assert found.held.answer.pool.most_requests_per_s == pytest.approx(outcome.best.pool.most_requests_per_s)
    with pytest.raises(InputError, match=r"vLLM 0\.9\.2 has no flag for it; --runner is there since 0\.10\.1"):
        deploy(sizing.estimate(sizing.ask(str(demand), gpu="l4", engine="vllm:0.9.2"), simulated=False, relaxed=False))


def test_a_version_and_more_replicas_may_be_said(asked: dict[str, str], tmp_path: Path) -> None:
    """What the user says beside a script holds where it does not contradict its comments."""
    outcome = sizing.estimate(sizing.ask(asked["plain"]), simulated=False, relaxed=False)
    path = tmp_path / "k"
    path.write_text(deploy(outcome, "vllm").text, encoding="utf-8")
    assert sizing.check(str(path), demand=asked["plain"], filled=UserFacts(gpu="h100-sxm"), simulated=False)
    with pytest.raises(InputError, match="replicas: is 1 here, and --replicas says 2"):
        sizing.check(str(path), demand=asked["plain"], filled=UserFacts(replicas=2), simulated=False)
