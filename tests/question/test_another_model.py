"""A model that is asked for in place of a workload's own is served as if it were asked for alone."""

import pytest

import sizing

OWN = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
DRAFTED = """
model: llama-3.3-70b
precision: fp8
kv_precision: fp8
tokens: {isl: 1000, osl: 200}
demand: {requests_per_s: 2}
optimisations: {speculative: "ngram:4@0.6"}
"""


@pytest.fixture
def drafted(tmp_path):
    path = tmp_path / "drafted.yaml"
    path.write_text(DRAFTED)
    return str(path)


@pytest.mark.parametrize("model", [{"model": "llama-3.1-8b"}, {"set": ["model=llama-3.1-8b"]}])
def test_a_checkpoint_does_not_take_what_a_workload_states_of_another(drafted, model):
    asked = sizing.ask(drafted, gpu="h100-sxm", **model)
    assert asked.service.extras == sizing.ask(isl=1000, osl=200, rps=2, **OWN).service.extras
    assert asked.space.precisions == (None,) and asked.service.kv_precision == "auto"
    assert asked.origin.left_out == (
        "precision fp8, kv precision fp8, speculative of drafted, stated for llama-3.3-70b; --precision fp8 may save GPUs",
    )
    quantised = sizing.ask(drafted, gpu="h100-sxm", model="gpt-oss-120b")
    assert "may save" not in quantised.origin.left_out[0]


def test_what_an_option_states_is_taken_of_any_model(drafted):
    asked = sizing.ask(drafted, precision="fp8", speculative="ngram:3@0.5", **OWN)
    assert asked.space.precisions == ("fp8",) and asked.service.extras.speculation is not None
    assert asked.origin.left_out == ("kv precision fp8 of drafted, stated for llama-3.3-70b",)


@pytest.mark.parametrize("model", [None, "llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"])
def test_the_own_model_of_a_workload_keeps_all_that_it_states(drafted, model):
    asked = sizing.ask(drafted, gpu="h100-sxm", model=model)
    assert asked.space.precisions == ("fp8",) and asked.service.kv_precision == "fp8"
    assert asked.service.extras.speculation is not None and asked.origin.left_out == ()
