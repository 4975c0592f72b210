"""What is written reads back to the same: every engine, version, layout and target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sizing
from sizing.answers.answer import Outcome
from sizing.catalog import profiles
from sizing.launch.answered import Checkpoints
from sizing.launch.deploy import ENGINES, WRITERS, deploy
from sizing.launch.existing import Existing, Filled, existing
from sizing.launch.flags import Dialect, Source, Word, dialect_of, read, write
from sizing.launch.terms import data_of, layout_of, terms_of
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


@pytest.fixture(scope="module")
def answers() -> dict[str, Outcome]:
    """The estimate of a chat on each engine, and of experts in separate pools."""
    chat = {name: sizing.ask("chat", gpu="h100-sxm", engine=name) for name in VERSIONS}
    return {name: sizing.estimate(question, simulated=False, relaxed=False) for name, question in chat.items()}


def found_in(tmp_path: Path, outcome: Outcome, target: str) -> tuple[list[Existing], Any]:
    named = Checkpoints("nvidia/Llama-3.1-70B-Instruct-FP8")
    written = deploy(outcome, target, checkpoints=named)
    path = tmp_path / ("k.sh" if target in ENGINES else "k.yaml")
    path.write_text(written.text, encoding="utf-8")
    filled = Filled(gpu="h100-sxm", replicas=written.replicas) if target in ENGINES else Filled()
    return existing(str(path), filled), written


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("target", WRITERS)
def test_files_read_back_to_the_answer(name: str, target: str, answers: dict[str, Outcome], tmp_path: Path) -> None:
    outcome = answers[name]
    if ENGINES.get(target, name) != name:
        with pytest.raises(InputError, match="is the engine of the question"):
            deploy(outcome, target)
        return
    (found,), written = found_in(tmp_path, outcome, target)
    best = outcome.best
    assert best is not None
    replica, serving = best.pool.replica, found.launched.serving
    assert layout_of(found.launched) == replica.layout
    assert (found.launched.replicas, found.launched.gpu) == (best.pool.count, "h100-sxm")
    assert serving.engine == f"{name}:{written.engine_version}"
    assert serving.max_model_len == outcome.question.service.max_model_len
    assert serving.max_num_seqs == replica.settings.max_num_seqs
    assert serving.max_num_batched_tokens == replica.settings.max_num_batched_tokens
    assert serving.memory_fraction == replica.settings.memory_fraction
    assert all(line for name, line in found.lines.items() if name in ("model", "tp", "replicas"))


@pytest.mark.parametrize("target", ["kubernetes", "compose", "kserve", "vllm"])
def test_separate_pools_read_back(target: str, tmp_path: Path) -> None:
    question = sizing.ask(
        model="llama-3.1-8b", gpu="h100-sxm", isl=2000, osl=200, rps=5, ttft="p95:2s", itl="30ms",
        disaggregate="prefill=1xtp1,decode=2xtp2",
    )  # fmt: skip
    outcome = sizing.estimate(question, simulated=False, relaxed=False)
    written = deploy(outcome, target)
    path = tmp_path / ("k.sh" if target == "vllm" else "k.yaml")
    path.write_text(written.text, encoding="utf-8")
    found = existing(str(path), Filled(gpu="h100-sxm", replicas=1) if target == "vllm" else Filled())
    assert [each.launched.role for each in found] == ["prefill", "decode"]
    assert [layout_of(each.launched).tp for each in found] == [1, 2]
    if target != "vllm":
        assert [each.launched.replicas for each in found] == [1, 2]
