"""Published checkpoints: each is itself in positions, weight format and kept modules, and a sibling says whose facts it has."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from builders import memory_of, plan_for, real_gpu, settings_for
from places import SHARED

from sizing.catalog.models import SHELF, _by_name, load_model, published
from sizing.catalog.shelf import only
from sizing.model import architecture
from sizing.specs.errors import InputError
from sizing.specs.model import CheckpointRules, Model
from sizing.specs.units import GIB

KNOWN = sorted(row["name"] for row in _by_name().values())
FACTS = SHARED / "facts"


def weights_gib(model: Model) -> float:
    gpu = real_gpu("h100-sxm")
    plan = plan_for(model, gpu, settings_for(model, gpu, architecture.Layout()))
    matrices = architecture.stage_matrices(model, architecture.whole(model), architecture.Layout())
    held = sum(count * matrix.parameters * plan.weight_bytes(matrix.role) for matrix, count in matrices)
    return (held + model.extra_parameters * 2) / GIB


@pytest.mark.parametrize("name", KNOWN)
def test_a_checkpoint_has_a_profile_and_words_that_are_known(name: str) -> None:
    row, rules = published(name), only(CheckpointRules)
    assert row is not None and row.profile in SHELF.ids
    assert row.stored is None or row.stored in rules.storages
    assert all(word in rules.kept or "*" in word for word in row.kept)
    found = load_model(name)
    assert (found.id, found.spec.name, found.matched_from) == (row.profile, name, None)
    before = 2 if row.positions == 514 else 0  # of RoBERTa's table, which begins at the padding token
    assert row.positions in (None, found.spec.max_position + before)
    assert (found.precision, bool(found.name_notes)) == (None, row.evidence == "memory")


def test_the_searched_blocks_of_nemotron_ultra_are_counted_one_by_one() -> None:
    model = load_model("nvidia/Llama-3_1-Nemotron-Ultra-253B-v1").spec
    layers = [model.kinds[kind] for kind in model.layers]
    # Its config: 162 blocks, of which 81 are empty, 17 have an MLP alone and 64 attention with 8 KV heads of 128.
    assert (len(layers), sum(not layer.mlps for layer in layers)) == (162, 81)
    assert sum(layer.mixer is not None for layer in layers) == 64
    assert memory_of(model, real_gpu("b200"), architecture.Layout(tp=8)).kv_bytes_per_token == 64 * 2 * 8 * 128 * 2 / 8
    assert weights_gib(model) * GIB / 2 == pytest.approx(253.4e9, rel=0.002)


@pytest.mark.parametrize(
    ("name", "positions", "precision", "kept"),
    [
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", 262144, "fp8_block", set()),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 262144, "bf16", set()),
        ("Qwen/Qwen2.5-7B-Instruct", 32768, "bf16", set()),
        ("Qwen/Qwen2.5-7B", 131072, "bf16", set()),
        ("moonshotai/Kimi-K2-Instruct-0905", 262144, "fp8_block", set()),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 262144, "nvfp4", {"attention"}),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", 262144, "nvfp4", {"attention", "shared_expert"}),
    ],
)
def test_a_checkpoint_is_itself(name: str, positions: int, precision: str, kept: set[str]) -> None:
    model = load_model(name).spec
    assert (model.max_position, model.quantisation.precision) == (positions, precision)
    assert model.quantisation.kept_16bit - {"embedding", "lm_head", "norm", "router"} == kept


def test_the_mixed_files_of_nvidia_have_attention_in_fp8() -> None:
    held = load_model("nvidia/Qwen3.6-27B-NVFP4").spec.quantisation
    assert (held.precision, held.weight_only, "lm_head" in held.kept_16bit) == ("nvfp4", True, False)
    assert [(one.role, one.precision, one.share) for one in held.stored] == [("attention", "fp8", 1.0)]


def test_latents_kept_in_16_bit_are_a_share_of_attention() -> None:
    # Of a layer's 187.1 M: q_a 7168 x 1536, q_b 1536 x 24576, kv_a 7168 x 576, kv_b 512 x 32768; the rest is the output.
    kept = 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768
    (one,) = load_model("nvidia/DeepSeek-V3.1-NVFP4").spec.quantisation.stored
    assert (one.role, one.precision) == ("attention", None)
    assert one.share == pytest.approx(kept / (kept + 16384 * 7168))


@pytest.mark.parametrize(
    ("name", "positions"),
    [("qwen3-coder-30b", 262144), ("Qwen3-Coder-30B-A3B-fp8", 262144), ("qwen3-30b", 40960)],
)
def test_the_beginning_of_a_name_means_the_checkpoint_and_not_its_family(name: str, positions: int) -> None:
    assert load_model(name).spec.max_position == positions


def test_a_sibling_says_whose_facts_it_has() -> None:
    found = load_model("someone/Qwen3-4B-Instruct-2507-AWQ")
    assert found.spec.name == "someone/Qwen3-4B-Instruct-2507-AWQ as Qwen/Qwen3-4B-Instruct-2507"
    assert (found.precision, found.spec.max_position) == ("int4", 262144)
    assert any("is not known by itself" in note for note in found.name_notes)
    copy = load_model("unsloth/Qwen2.5-7B-Instruct").spec
    assert (copy.name, copy.max_position) == ("Qwen/Qwen2.5-7B-Instruct", 32768)


def test_a_name_without_organisation_has_the_formats_of_its_publisher() -> None:
    for name in ("Qwen3.8-27B-FP8", "Qwen/Qwen3.8-27B-FP8"):  # Qwen's FP8 is in blocks
        assert load_model(name).precision == "fp8_block"
    assert load_model("someone/Qwen3.8-27B-FP8").precision == "fp8"


@pytest.mark.parametrize(
    ("name", "sibling", "positions", "task"),
    [
        ("google/gemma-7b-it", "google/gemma-7b", 8192, None),
        ("deepseek-ai/deepseek-coder-33b-instruct", "deepseek-ai/deepseek-coder-33b-base", 16384, None),
        ("codellama/CodeLlama-13b-Instruct-hf", "codellama/CodeLlama-13b-hf", 16384, None),
        ("intfloat/e5-base-v2", "BAAI/bge-base-en-v1.5", 512, "embed"),
        ("BAAI/bge-reranker-v2-gemma", None, 8192, "score"),
        ("Qwen/QVQ-72B-Preview", None, 128000, None),
    ],
)
def test_a_popular_name_is_itself_or_says_whose_sibling_it_is(
    name: str, sibling: str | None, positions: int, task: str | None
) -> None:
    found = load_model(name)
    assert found.spec.name == (name if sibling is None else f"{name} as {sibling}")
    assert (found.spec.max_position, found.task) == (positions, task)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("BAAI/bge-m3", 8192),  # 8,194 rows, of which 0 and that of the padding token, 1, are no token's
        ("intfloat/multilingual-e5-large-instruct", 512),
        ("roberta-large", 512),
        ("BAAI/bge-large-en-v1.5", 512),  # BERT counts from 0
        ("jinaai/jina-embeddings-v3", 8194),  # rotary
    ],
)
def test_positions_of_roberta_begin_after_the_padding_token(name: str, positions: int) -> None:
    assert load_model(name).spec.max_position == positions


def test_an_organisation_that_was_renamed_publishes_the_same_files() -> None:
    assert (
        load_model("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8").spec.name == "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"
    )
    assert load_model("THUDM/GLM-4.5").spec.name == "zai-org/GLM-4.5"


def test_a_format_of_a_name_says_which_layers_are_taken_to_have_it() -> None:
    taken = "all layers but embeddings, head, router and norms are taken to be in that format"
    assert taken in load_model("someone/Qwen3-8B-W4A16").name_notes
    assert taken not in load_model("someone/gpt-oss-20b-BF16").name_notes


def test_a_name_of_gguf_files_is_refused_as_such() -> None:
    with pytest.raises(InputError, match="GGUF"):
        load_model("unsloth/Qwen3-8B-GGUF")


def test_a_config_beside_a_name_wins(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-7B-Instruct"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "hidden_act": "silu",'
        '"vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": false}'
    )
    assert load_model(str(folder)).spec.max_position == 4096


@pytest.mark.skipif(not FACTS.is_dir(), reason="the facts are not part of the project")
def test_checkpoints_agree_with_their_published_positions_and_sizes() -> None:
    # Sizes of Hugging Face count a tied head twice where the file stores it apart.
    sized = 0
    with (FACTS / "checkpoints.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                model = load_model(row["id"]).spec
            except InputError:
                continue
            if row["max_position_embeddings"]:
                assert model.max_position == int(row["max_position_embeddings"]), row["id"]
            tolerance = {"computed": 0.01, "read": 0.015}.get(row["size_basis"])
            if tolerance is not None:
                assert weights_gib(model) == pytest.approx(float(row["safetensors_gib"]), rel=tolerance), row["id"]
                sized += 1
    assert sized > 10


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("nvidia/DeepSeek-R1-0528-NVFP4", "nvidia/DeepSeek-R1-0528-FP4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "nvidia/DeepSeek-R1-0528-FP4-v2"),
        ("nvidia/Qwen3-32B-FP4", "nvidia/Qwen3-32B-NVFP4"),
    ],
)
def test_a_format_in_its_other_spelling_names_the_same_checkpoint(asked: str, known: str) -> None:
    other, own = load_model(asked), load_model(known)
    assert other.spec == own.spec and other.precision is None and "as " not in other.spec.name
    assert load_model("org/" + asked.partition("/")[2]).spec.name.startswith("org/")
