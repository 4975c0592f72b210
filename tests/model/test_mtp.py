"""Multi-token prediction: which configs state it, what its modules weigh, and that they count where they are loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from builders import real_gpu, real_model
from optimised_builders import extras_for, laid
from places import ROOT

from sizing.catalog import shelf
from sizing.catalog.config.model import read_model
from sizing.catalog.models import with_modules
from sizing.cli.main import run
from sizing.model import architecture, memory, precision
from sizing.model.architecture import Layout, Shard
from sizing.model.extras import drafts
from sizing.model.footprint import weight_bytes
from sizing.replica import replica
from sizing.specs.data import Formats
from sizing.specs.errors import InputError
from sizing.specs.model import DenseMlp, GqaAttention, Mtp
from sizing.specs.units import GIB

PACKAGED = ROOT / "workloads" / "models"


def config_of(model: str, **changes: object) -> dict[str, object]:
    """A packaged model's config with keys changed; None takes one out."""
    stated = yaml.safe_load((PACKAGED / f"{model}.yaml").read_text())["config"]
    return {key: value for key, value in {**stated, **changes}.items() if value is not None}


def mtp_of(config: dict[str, object]) -> Mtp | None:
    return read_model(config, name="a model", source="here").mtp


@pytest.mark.parametrize(
    ("stated", "modules", "field"),
    [
        ({"num_nextn_predict_layers": 1}, 1, "num_nextn_predict_layers"),
        ({"num_nextn_predict_layers": 0}, 0, "num_nextn_predict_layers"),
        ({"text_config": {"mtp_num_hidden_layers": 2}}, 2, "mtp_num_hidden_layers"),
        ({"num_mtp_modules": 3, "use_mtp": True}, 3, "num_mtp_modules"),
        ({"num_mtp_modules": 3, "use_mtp": False}, 0, "use_mtp"),
    ],
)
def test_a_config_states_modules(stated: dict[str, object], modules: int, field: str) -> None:
    found = mtp_of(config_of("qwen3-8b", **stated))
    assert found is not None
    assert (found.modules, found.field, len(found.layers)) == (modules, field, 1)


def test_a_silent_config_states_nothing() -> None:
    assert mtp_of(config_of("qwen3-8b")) is None


def test_layers_of_a_module_are_as_the_last_or_as_a_pattern_says() -> None:
    """Nemotron's last layer is experts alone, its module an attention layer and one of experts: `*E`."""
    deep = mtp_of(config_of("mimo-7b", mtp_transformer_layers=2))
    assert deep is not None
    assert [type(mlp) for layer in deep.layers for mlp in layer.mlps] == [DenseMlp, DenseMlp]
    pattern = real_model("nemotron-3-super-120b-a12b").mtp
    assert pattern is not None
    attention, experts = pattern.layers
    assert isinstance(attention.mixer, GqaAttention)
    assert not attention.mlps
    assert experts.mixer is None


@pytest.mark.parametrize(
    ("excluded", "kept"),
    [
        ("mtp*", True),
        ("mtp.layers.0*", True),
        ("model.layers.61*", True),
        ("model.layers.6*", False),
        ("mtp.fc", False),
    ],
)
def test_quantised_checkpoints_may_leave_modules_in_16_bit(excluded: str, kept: bool) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignore": [excluded]}
    found = mtp_of(config_of("deepseek-v3", quantization_config=quantised))
    assert found is not None
    assert found.kept_16bit is kept


@pytest.mark.parametrize(("model", "said"), [("llama-3.1-8b", "states no modules"), ("kimi-k2.5", "num_nextn")])
def test_a_model_without_modules_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    assert run(["memory", "-m", model, "-g", "h200-sxm", "--tp", "8", "--speculative", "mtp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--speculative" in line
    assert said in line
    assert "another method" in line
    assert "deepseek-v3," in line


def test_every_model_that_is_named_has_modules() -> None:
    assert with_modules()
    for name in with_modules():
        spoken = extras_for(real_model(name), speculative="mtp").speculation
        assert spoken is not None
        assert spoken.draft is not None


def test_a_config_of_ones_own_may_state_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, stated, code in (("with", {"num_nextn_predict_layers": 1}, 0), ("without", {}, 2)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config_of("qwen3-8b", **stated)))
        assert run(["memory", "-m", str(file), "-g", "h100-sxm", "--speculative", "mtp", "--json"]) == code
    capsys.readouterr()


def test_the_weights_of_a_module_by_hand() -> None:
    """DeepSeek-V3, hidden 7,168, in FP8 on each of eight ranks: latents 7168*(1536 + 576) = 15,138,816 whole, the rest of
    attention (1536*128*192 + 512*128*256 + 128*128*7168 = 171,966,464), 256 + 1 experts of 3*7168*2048 (11,318,329,344) and the
    join 2*7168^2 (102,760,448) by eight, and the router 7168*256 whole in 16 bit: 1.468e9. Once each they are "11.5B unique
    parameters", as its authors count them.
    """
    whole = 7168 * (1536 + 576) + 2 * 7168 * 256
    split = 171_966_464 + 257 * 3 * 7168 * 2048 + 2 * 7168**2
    held = laid("deepseek-v3", "h200-sxm", tp=8, speculative="mtp:1").memory.beside_gib * GIB
    assert held == pytest.approx(whole + split / 8, rel=1e-3)
    assert whole + split == pytest.approx(11.5e9, rel=0.02)


def test_all_modules_are_held_and_a_pass_runs_through_one() -> None:
    """MiniMax-M2.5 has three: three times the weights and cache of one, and the work of one for a drafted token."""
    model = real_model("minimax-m2.5")
    assert model.mtp is not None
    draft = extras_for(model, speculative="mtp:1").draft
    one = extras_for(replace(model, mtp=replace(model.mtp, modules=1)), speculative="mtp:1").draft
    assert draft is not None
    assert one is not None
    assert (draft.modules, draft.model, draft.passes) == (3, one.model, one.passes)
    of, plain = (laid("minimax-m2.5", "h200-sxm", tp=4, **asked) for asked in ({"speculative": "mtp:1"}, {}))
    layers = len(model.layers)
    growth = plain.memory.kv_bytes_per_token / layers
    assert of.memory.kv_bytes_per_token - plain.memory.kv_bytes_per_token == pytest.approx(3 * growth)


def test_modules_weigh_nothing_where_nothing_drafts() -> None:
    """An index counts them; engines load them only to draft, so its total is not the model's alone."""
    model, gpu, layout = real_model("deepseek-v3"), real_gpu("h200-sxm"), Layout(tp=8)
    of = laid("deepseek-v3", "h200-sxm", tp=8)
    settings = replica.resolve_settings(of.question.service, gpu, layout)
    plan = precision.plan(model, gpu, settings, shelf.only(Formats))
    whole = weight_bytes(Shard(model, Layout(), settings, plan), architecture.whole(model))
    indexed = replace(model, checkpoint_bytes=int(whole + drafts.module_bytes(model, plan)), checkpoint_ratio=1.5)
    held = memory.use(Shard(indexed, layout, settings, plan), gpu, 4096).weights_gib
    assert held == pytest.approx(of.memory.weights_gib, rel=1e-4)
    assert drafts.module_bytes(model, plan) > 0.015 * whole


def test_an_unquantised_module_takes_16_bit_beside_a_quantised_model() -> None:
    model = real_model("deepseek-v3")
    assert model.mtp is not None
    kept = replace(model, mtp=replace(model.mtp, kept_16bit=True))
    gpu, layout = real_gpu("h200-sxm"), Layout(tp=8)
    of = laid("deepseek-v3", "h200-sxm", tp=8, speculative="mtp")
    settings = replica.resolve_settings(of.question.service, gpu, layout)
    extras = extras_for(kept, speculative="mtp")
    plan = precision.plan(kept, gpu, settings, shelf.only(Formats), extras=extras)
    held = memory.use(Shard(kept, layout, settings, plan, extras), gpu, 4096).beside_gib
    assert held == pytest.approx(2 * of.memory.beside_gib, rel=3e-3)


def test_a_draft_without_modules_is_an_input_error() -> None:
    with pytest.raises(InputError, match="states no modules"):
        extras_for(real_model("qwen3-8b"), speculative="mtp")
