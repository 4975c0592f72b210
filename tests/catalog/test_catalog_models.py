"""Models: checkpoint names taken apart, config files and their neighbours, models not in the catalogue."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sizing.catalog.config.fields import refused_by_name
from sizing.catalog.models import SHELF, by_part, candidates, load_model, parsed
from sizing.catalog.shelf import CatalogEntry, entries, matched_from, only
from sizing.specs.errors import InputError
from sizing.specs.model import NameRules


def entry(stem: str, name: str, *aliases: str) -> CatalogEntry:
    return CatalogEntry(stem, Path(f"{stem}.yaml"), name, aliases)


KNOWN = (
    entry("llama-3-70b", "meta-llama/Meta-Llama-3-70B"),
    entry("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
    entry("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
    entry("llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct"),
    entry("glm-5", "zai-org/GLM-5"),
    entry("glm-5.1", "zai-org/GLM-5.1"),
    entry("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
    entry("mixtral-8x7b-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
    entry("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1"),
    entry("mistral-7b-instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    entry("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B"),
    entry("qwen3-235b-a22b-fp8", "Qwen/Qwen3-235B-A22B-FP8"),
    entry("qwen3-32b", "Qwen/Qwen3-32B"),
    entry("nemotron-3-nano-30b-a3b", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    entry("mistral-small-instruct-2409", "mistralai/Mistral-Small-Instruct-2409"),
    entry("mistral-small-24b-instruct-2501", "mistralai/Mistral-Small-24B-Instruct-2501"),
    entry("gemma-3-12b-it", "google/gemma-3-12b-it"),
    entry("c4ai-command-r-08-2024", "CohereForAI/c4ai-command-r-08-2024"),
)

# (what people write, profile, precision that the name sets)
NAMES = [
    ("llama-3.1-8b", "llama-3.1-8b", None),
    ("Llama 3.1 8B", "llama-3.1-8b", None),
    ("llama3.1:8b-instruct-fp16", "llama-3.1-8b", "fp16"),
    ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", None),
    ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b", None),
    ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b", None),
    ("llama-3-70b-chat-hf", "llama-3-70b", None),
    ("zhipuai/GLM-5", "glm-5", None),
    ("zai-org/GLM-5-FP8", "glm-5", "fp8_block"),
    ("zai-org/GLM-5.1-FP8", "glm-5.1", "fp8_block"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b-instruct", "fp8"),
    ("RedHatAI/Llama-3.3-70B-Instruct-fp8-block", "llama-3.3-70b-instruct", "fp8_block"),
    ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.3-70b-instruct", "nvfp4"),
    ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "llama-3.3-70b-instruct", "nvfp4"),
    ("amd/Llama-3.1-70B-Instruct-FP8-KV", "llama-3.1-70b", "fp8"),
    ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b", "int8"),
    ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "llama-3.1-70b", "int4"),
    ("x/Llama-3.1-70B-Instruct-W8A8", "llama-3.1-70b", "int8"),
    ("x/Llama-3.1-70B-Instruct-W4A16", "llama-3.1-70b", "int4"),
    ("x/Llama-3.1-70B-Instruct-INT8", "llama-3.1-70b", "int8"),
    ("x/Llama-3.1-70B-int4", "llama-3.1-70b", "int4"),
    ("x/Llama-3.1-70B-Instruct-MXFP4", "llama-3.1-70b", "mxfp4"),
    ("x/Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "int4"),
    ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "int4"),
    ("Qwen/Qwen3-32B-GPTQ", "qwen3-32b", "int4"),
    ("Qwen/Qwen3-32B-GPTQ-Int4", "qwen3-32b", "int4"),
    ("Qwen/Qwen3-32B-GPTQ-Int8", "qwen3-32b", "int8"),
    ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1", "nvfp4"),
    ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1", "nvfp4"),
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", None),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b-v0.1", None),
    ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1", None),
    ("mistralai/Mistral-7B-v0.3", "mistral-7b-instruct-v0.3", None),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b", None),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", "fp8_block"),
    ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b-fp8", "fp8_block"),
    ("nvidia/Qwen3-235B-A22B-FP4", "qwen3-235b-a22b", "nvfp4"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b", "fp8"),
    ("mistral-small-2409", "mistral-small-instruct-2409", None),
    ("mistralai/Mistral-Small-Instruct-2409", "mistral-small-instruct-2409", None),
    ("Mistral-Small-24B-Base-2501", "mistral-small-24b-instruct-2501", None),
    ("google/gemma-3-12b-pt", None, None),
    ("gemma-3-12b", "gemma-3-12b-it", None),
    ("command-r-08-2024", "c4ai-command-r-08-2024", None),
    ("mixtral", "mixtral-8x7b-v0.1", None),
    ("microsoft/phi-2", None, None),
    ("meta-llama/Llama-3.1", None, None),  # with an organisation a name is whole
    ("", None, None),
]


@pytest.mark.parametrize(("text", "stem", "precision"), NAMES, ids=[row[0] for row in NAMES])
def test_a_checkpoint_name_finds_its_profile_and_precision(text: str, stem: str | None, precision: str | None) -> None:
    rules = only(NameRules)
    hits = candidates(text, KNOWN, SHELF, rules)
    assert [hit.id for hit in hits] == ([] if stem is None else [stem])
    quantisation = parsed(text, rules).quantisation
    if stem is not None:
        assert (quantisation and quantisation.precision) == precision


@pytest.mark.parametrize(
    ("text", "stems"),
    [
        ("llama", ["llama-3-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.3-70b-instruct"]),
        ("Llama-3.1", ["llama-3.1-8b", "llama-3.1-70b"]),
        ("mistral-small", ["mistral-small-instruct-2409"]),  # the same shape, but for the date
        ("glm", ["glm-5", "glm-5.1"]),
    ],
)
def test_the_beginning_of_names_gives_all_that_begin_so(text: str, stems: list[str]) -> None:
    assert [hit.id for hit in candidates(text, KNOWN, SHELF, only(NameRules))] == stems


def test_the_longest_quantisation_ending_counts() -> None:
    # Every ending must be reachable: none is hidden by a shorter one that it ends with.
    rules = only(NameRules)
    for row in rules.quantisations:
        publisher = row.organisations[0] if row.organisations else "org"
        found = parsed(f"{publisher}/Some-7B-{row.suffix.upper()}", rules)
        assert found.quantisation == row
        assert (found.unquantised, found.bare) == ("some-7b", "some-7b")


def test_a_name_of_nothing_but_a_known_word_stays_whole() -> None:
    assert [parsed(name, only(NameRules)).bare for name in ("fp8", "instruct", "meta", "2507")] == [
        "fp8",
        "instruct",
        "meta",
        "2507",
    ]


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    kept = {key: value for key, value in {**CONFIG, **changes}.items() if value != "drop"}
    path.write_text(json.dumps(kept, indent=2))
    return path


def test_a_config_file_and_its_folder_give_the_same_model(tmp_path: Path) -> None:
    path = write_config(tmp_path / "my-model")
    by_file, by_folder = load_model(str(path)), load_model(str(path.parent))
    assert by_file.spec == by_folder.spec
    assert (by_file.id, by_file.spec.name, by_file.facts) == ("my-model", "my-model", None)
    assert (by_file.spec.hidden_size, len(by_file.spec.layers)) == (64, 2)
    assert (by_file.precision, by_file.spec.checkpoint_bytes) == (None, None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{folder}/Llama-X", "Llama-X"),
        ("{folder}/Llama-X/", "Llama-X"),
        ("Llama-X/config.json", "Llama-X"),
        ("./Llama-X/config.json", "Llama-X"),
        ("{folder}/Llama-X/config.json", "Llama-X"),
        ("./Llama-X/my-own.json", "my-own"),
        # In the checkpoint's folder: `.` is that folder, a file in it without a folder says nothing of its name.
        ("in:.", "Llama-X"),
        ("in:./config.json", "llama (config.json)"),
        ("in:config.json", "llama (config.json)"),
        ("in:../Llama-X", "Llama-X"),
        ("{folder}/hub/models--org--Llama-Y/snapshots/0123abcd/config.json", "org/Llama-Y"),
        ("{folder}/hub/models--org--Llama-Y/snapshots/0123abcd", "org/Llama-Y"),
    ],
)
def test_a_model_on_disk_has_the_name_that_its_user_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    folder = write_config(tmp_path / "Llama-X").parent
    (folder / "my-own.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "hub" / "models--org--Llama-Y" / "snapshots").mkdir(parents=True)
    write_config(tmp_path / "hub" / "models--org--Llama-Y" / "snapshots" / "0123abcd")
    monkeypatch.chdir(folder if text.startswith("in:") else tmp_path)
    found = load_model(text.removeprefix("in:").format(folder=tmp_path))
    assert (found.id, found.spec.name) == (name, name)


def test_a_config_without_a_folder_of_its_own_has_the_name_that_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "x", _name_or_path="org/Llama-Z")
    monkeypatch.chdir(tmp_path / "x")
    assert load_model("./config.json").spec.name == "org/Llama-Z"
    assert load_model(".").spec.name == "x"


def test_what_lies_beside_a_config_is_honoured(tmp_path: Path) -> None:
    path = write_config(tmp_path / "m")
    quantisation = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (path.parent / "hf_quant_config.json").write_text(json.dumps(quantisation))
    (path.parent / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 123456}, "weight_map": {}}')
    model = load_model(str(path)).spec
    assert (model.quantisation.precision, model.quantisation.kv_precision) == ("fp8", "fp8")
    assert model.checkpoint_bytes == 123456


def test_the_quantisation_file_in_place_of_the_config_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "hf_quant_config.json"
    path.write_text('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}')
    with pytest.raises(InputError, match="not what the model is"):
        load_model(str(path))


@pytest.mark.parametrize("size", ["true", "-5", '"5"', "1.5", "0"])
def test_a_wrong_index_is_a_fault_with_its_line(tmp_path: Path, size: str) -> None:
    path = write_config(tmp_path / "m")
    (path.parent / "model.safetensors.index.json").write_text('{\n"metadata": {\n"total_size": ' + size + "}}")
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    (fault,) = caught.value.faults
    assert (fault.line, fault.field) == (3, "metadata.total_size")


def test_faults_of_a_config_name_file_and_line(tmp_path: Path) -> None:
    path = write_config(tmp_path / "m", hidden_size="big", vocab_size="drop")
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    lines = {fault.field: fault.line for fault in caught.value.faults}
    assert lines["hidden_size"] == 6  # after the brace, three lines of architectures, and model_type
    assert lines["vocab_size"] is None
    assert all(fault.file == str(path) for fault in caught.value.faults)


def test_a_misspelt_key_is_reported_at_its_line(tmp_path: Path) -> None:
    path = write_config(tmp_path / "m", num_key_value_heads="drop", num_key_value_head=2)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    (fault,) = caught.value.faults
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if '"num_key_value_head"' in text)
    assert (fault.line, fault.field, fault.nearest) == (line, "num_key_value_head", "num_key_value_heads")


def test_a_users_own_profile_is_read_by_path(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    head = "name: me/Mine\naliases: []\nparameters_b: 1.0\nquality: exact\nsource: here\ndate: '2025'\n"
    own.write_text(head + "config:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in CONFIG.items()))
    found = load_model(str(own))
    assert found.facts is not None
    assert (found.id, found.spec.name, found.facts.parameters_b) == ("mine", "me/Mine", 1.0)
    own.write_text(own.read_text().replace("hidden_size: 64", "hidden_size: wide"))
    with pytest.raises(InputError) as caught:
        load_model(str(own))
    assert caught.value.faults[0].line == 10


@pytest.mark.parametrize("text", ["./config.json", "nowhere/config.json", "../x", "~/none/config.json", "a/b/c"])
def test_a_missing_path_is_not_taken_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not found"):
        load_model(text)


def test_a_folder_named_as_a_hub_id_is_meant_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    write_config(tmp_path / "org" / "model")
    assert load_model("org/model").spec.hidden_size == 64


def test_without_the_hub_client_the_way_to_the_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as caught:
        load_model("nobody/Not-A-Model-9B")
    text = str(caught.value)
    assert text.startswith("unknown model 'nobody/Not-A-Model-9B'")
    assert "download config.json from https://huggingface.co/nobody/Not-A-Model-9B" in text
    assert "-m ./config.json" in text
    assert "llmsize[hub]" in text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openai/whisper-large-v3", "a whisper model, which is not modelled: sound is its input or its output"),
        ("whisper-large-v3", "a whisper model"),
        ("google-t5/t5-11b", "an encoder beside a decoder"),
        ("google/flan-t5-xl", "a t5 model"),
        ("Qwen3-Omni-30B-A3B-Instruct", "a qwen3_omni_moe model"),
    ],
)
def test_a_model_of_a_refused_type_is_refused_by_its_name(name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as caught:
        load_model(name)
    text = str(caught.value)
    assert why in text and "can't be sized here" in text and "download" not in text


@pytest.mark.parametrize(
    "name", ["nobody/Llama-clip-7B", "nobody/mixtral-whisper", "nobody/ragged-7b", "Pixtral-Large-Instruct-2411"]
)
def test_a_word_of_a_refused_type_within_a_name_does_not_refuse_it(name: str) -> None:
    assert refused_by_name(name) is None


def test_a_hub_id_is_fetched_as_config_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def download(hub_id: str, file: str) -> str:
        asked.append((hub_id, file))
        return str(write_config(tmp_path / "snapshot"))

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    found = load_model("nobody/Not-A-Model-9B")
    assert asked == [("nobody/Not-A-Model-9B", "config.json")]
    assert (found.id, found.spec.name, found.spec.hidden_size) == ("nobody/Not-A-Model-9B",) * 2 + (64,)


def test_a_failed_fetch_is_bad_input_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(hub_id: str, file: str) -> str:
        raise RuntimeError("401 Client Error\nlong story")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    with pytest.raises(InputError, match=r"config\.json of nobody/X-1B could not be fetched: 401 Client Error$"):
        load_model("nobody/X-1B")


def test_unknown_plain_names_do_not_reach_for_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=pytest.fail))
    with pytest.raises(InputError, match="unknown model 'zzzzz'"):
        load_model("zzzzz")


@pytest.mark.parametrize("name", SHELF.ids)
def test_the_published_name_of_a_profile_finds_it(name: str) -> None:
    found = load_model(name)
    assert found.facts is not None
    assert load_model(found.facts.name).id == name
    assert (found.precision, found.matched_from) == (None, None)


def test_a_quantised_checkpoint_of_a_profile_sets_its_precision() -> None:
    name, sibling = "amd/Llama-3.1-70B-Instruct-FP8-KV", "meta-llama/Llama-3.1-70B-Instruct"
    found = load_model(name)
    assert found.precision == "fp8"
    assert found.name_notes[0].startswith("-fp8-kv in the name: ")
    assert found.matched_from == name
    assert found.spec == replace(load_model(sibling).spec, name=f"{name} as {sibling}")
    assert found.spec.quantisation.kv_precision is None  # engines keep a 16-bit cache unless told


def test_matched_from_ignores_spelling_only() -> None:
    llama = KNOWN[1]
    assert matched_from("Llama 3.1 8B", llama) is None
    assert matched_from("meta-llama/Llama-3.1-8B", llama) is None
    assert matched_from("Llama-3.1-8B-Instruct", llama) == "Llama-3.1-8B-Instruct"


ENDINGS = ("", "-Instruct", "-FP8", "-Instruct-FP8-dynamic", "-Instruct-quantized.w4a16")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_opened_by_its_parts_is_the_one_that_all_names_give(ending: str) -> None:
    known, rules = entries(SHELF), only(NameRules)
    tried = known[ENDINGS.index(ending) :: 9] if ending else known
    opened = 0
    for profile in tried:
        for name in profile.names:
            direct = by_part(name + ending)
            if direct is not None:
                opened += 1
                assert [hit.id for hit in candidates(name + ending, known, SHELF, rules)] == [direct.id]
    assert opened > len(tried) / 2
