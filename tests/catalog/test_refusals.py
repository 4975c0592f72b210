"""Refusals answer the question that was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.cli.main import run

ASKED = ["--isl", "1000", "--osl", "200", "--rps", "1"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "tpu-v5p",
            ["Google TPU v5p", "NVIDIA and AMD GPUs under vLLM, SGLang and TensorRT-LLM", "nearest: h100-sxm"],
        ),
        ("gaudi3", ["Intel Gaudi 3", "nearest: h200-sxm"]),
        ("trn2", ["Trainium 2"]),
        ("Apple M4", ["Apple silicon"]),
        ("cpu", ["CPUs"]),
    ],
)
def test_hardware_that_is_not_modelled_is_named(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    err = told(capsys, "estimate", "-m", "llama-3.1-8b", "-g", name, *ASKED)
    assert "is not modelled" in err and "did you mean" not in err
    assert all(word in err for word in words), err


def test_engines_and_formats_that_are_not_modelled_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "llama.cpp" in told(capsys, "engines", "ollama")
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_text("x")
    assert "GGUF" in told(capsys, "memory", "-m", "model.gguf", "-g", "h100-sxm")


def test_another_number_is_no_misspelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in told(capsys, "gpus", "h300")
    assert "did you mean h100-sxm?" in told(capsys, "gpus", "h100sxn")


def test_two_letters_are_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown GPU '5'" in told(capsys, "gpus", "5")
    assert run(["gpus", "rtx509"]) == 0


def test_an_engine_s_version_is_one_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert "vllm 99 is not known" in told(capsys, "engines", "vllm:99")


def test_a_file_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "rag.yaml: there is no such file; allowed: rag for the ready workload" in told(
        capsys, "estimate", "rag.yaml"
    )
    Path("service").write_text("model: [\n")
    assert "service:" in told(capsys, "estimate", "service") and "unknown" not in capsys.readouterr().err


def test_a_misspelt_workload_hides_no_other_fault(capsys: pytest.CaptureFixture[str]) -> None:
    err = told(capsys, "estimate", "cht", "-g", "h999", "--ttft", "5", "--headroom", "5")
    for words in ("did you mean chat?", "unknown GPU 'h999'", "--ttft: ", "--headroom: "):
        assert words in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--confidence", "80%", "--conservative"], "80% contradicts --conservative"),
        (["--price", "h100-sxm=2,h100-sxm=3"], "states two prices of h100-sxm"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["estimate", "chat", "-g", "h100-sxm", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "words"),
    [("5", "must be a list"), ("true", "must be a list"), ("a,b", "no list of whole numbers, as 20,22")],
)
def test_layers_of_stages_that_are_no_list_are_named(
    layers: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = told(capsys, "estimate", "chat", "-g", "h100-sxm", "--set", f"serving.pp_layers={layers}")
    assert "serving.pp_layers" in err and words in err
