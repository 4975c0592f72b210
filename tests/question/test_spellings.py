"""Keys of a workload file spelt like options: the same workload as with the file's own keys, at any level, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.catalog.files import DataFile
from sizing.catalog.workloads import respelt
from sizing.question.ask import ask
from sizing.question.names import fleet_at, words, workload_at
from sizing.question.options import QUESTION_OPTIONS
from sizing.specs.errors import InputError

OWN = """
model: llama-3.1-8b
precision: fp8
tokens: {isl: 3000, osl: 200}
demand: {requests_per_s: 5}
limits: {itl: 50ms, ttft: p95:500ms}
serving: {tp: 2}
planning: {headroom: 20%}
"""
SPELT = """
model: llama-3.1-8b
quantization: fp8
input-len: 3k
osl: 200
demand: {rps: 5, ttft: p95:500ms}
limits: {tpot: 50ms}
tensor_parallel_size: 2
headroom: 20%
"""


def written(text: str, folder: Path) -> str:
    path = folder / "service.yaml"
    path.write_text(text.lstrip(), encoding="utf-8")
    return str(path)


def test_options_spelt_as_keys_are_the_same_workload(tmp_path: Path) -> None:
    assert workload_at(written(SPELT, tmp_path)).spec == workload_at(written(OWN, tmp_path)).spec


def test_a_workload_written_out_in_a_fleet_may_be_spelt_so_too(tmp_path: Path) -> None:
    inner = "".join(f"      {line}\n" for line in SPELT.strip().splitlines())
    fleet = fleet_at(written(f"fleet:\n  - name: a\n    workload:\n{inner}", tmp_path))
    assert fleet is not None and not fleet.faults
    assert fleet.members[0].workload.spec == workload_at(written(OWN, tmp_path)).spec


def test_every_spelling_of_an_option_leads_to_its_field() -> None:
    """The table of options is the only list of spellings."""
    of_file = words().fields
    for option in QUESTION_OPTIONS:
        for flag in option.flags:
            word = flag.partition("/")[0].strip().removeprefix("--").replace("-", "_")
            if option.field and word in of_file and word != "think_time":
                assert of_file[word] == option.field
    for word, field in of_file.items():
        data = respelt(DataFile({word: 1}, "f", ""), words()).data
        for step in field.split("."):
            data = data[step]
        assert data == 1, word


def refused(text: str, folder: Path) -> list[str]:
    with pytest.raises(InputError) as error:
        workload_at(written(text, folder))
    return [str(fault).partition("service.yaml:")[2] for fault in error.value.faults]


def test_a_fault_names_the_key_and_the_line_as_written(tmp_path: Path) -> None:
    told = refused("model: llama-3.1-8b\nisl: 3\nosl: 2\ndemand:\n  rps: many\n", tmp_path)
    assert len(told) == 1 and told[0].startswith("5: demand.rps: must be a number") and "'many'" in told[0]


def test_a_field_stated_twice_is_refused(tmp_path: Path) -> None:
    told = refused("model: llama-3.1-8b\ntokens: {isl: 3, osl: 2}\nisl: 4\n", tmp_path)
    assert told == ["3: isl: says the same as tokens.isl; state one of them"]


def test_an_unknown_key_says_what_may_be_meant(tmp_path: Path) -> None:
    told = refused("model: llama-3.1-8b\nisl: 3\nosl: 2\nprice: 8\ndemand: {uzers: 5}\nregion: eu\n", tmp_path)
    assert "price: unknown key; give it as an option: --price" in told[0]
    assert told[1].endswith("did you mean demand.concurrent_users?")
    assert "region: unknown key" in told[2] and "did you mean" not in told[2]


def test_every_mistake_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    """Names are looked up although something else is wrong, and each fault says what to write."""
    text = "model: lama-3.1-8b\ngpu: [h100-sxm, h999]\nrps: '5'\nisl: 1000x\nosl: 2\nttft: p95 500ms\nprecision: awq\n"
    said = [
        "1: model: unknown model 'lama-3.1-8b'; allowed: a name that `llmsize models` shows, or the path of a file; did you mean llama-3.1-8b?",
        "2: gpu: unknown GPU 'h999'; allowed: a name that `llmsize gpus` shows, or the path of a file",
        "3: rps: must be a number of at least 1e-06 and at most 1,000,000,000, not '5' as text (take it out of quotes)",
        "4: isl: must be a whole number above 0 and at most 1,000,000,000,000, not '1000x'",
        "6: ttft: 'p95 500ms' has no colon: write p95:500ms",
    ]
    told = refused(text, tmp_path)
    assert told[:-1] == said
    assert told[-1].endswith("; write int4, or with -m the name of a checkpoint in this format, which states it")


def test_keys_of_other_tools_are_guessed_and_the_known_keys_are_listed_once(tmp_path: Path) -> None:
    told = refused("model: llama-3.1-8b\ngpus: h100\ndtype: fp8\nfoo: 1\nisl: 3\nosl: 2\nttft: 1 second\n", tmp_path)
    assert told[0].startswith("2: gpus: must be a whole number") and told[0].endswith("did you mean gpu?")
    assert "3: dtype: unknown key; allowed: name, " in told[1] and told[1].endswith("did you mean precision?")
    assert told[2] == "4: foo: unknown key"
    assert told[3].endswith("as 500ms, 1.5s or 2min; of a percentile p95:1s")


def test_a_detail_of_a_demand_leaves_its_others(tmp_path: Path) -> None:
    """A document keeps its four requests where only the documents are set; another kind of demand replaces all."""
    text = "model: llama-3.1-8b\ngpu: h100-sxm\nisl: 500\nosl: 100\ndemand: {documents_per_year: {documents: 1e6, requests_per_document: 4}}\n"
    path = written(text + "planning: {active_hours: 8, peak_to_mean: 2}\n", tmp_path)
    found = ask(path, set=["demand.documents_per_year.documents=2e6"]).origin.workload.demand
    assert found is not None and found.documents_per_year is not None
    assert (found.documents_per_year.documents, found.documents_per_year.requests_per_document) == (2e6, 4)
    other = ask(path, rps=5).origin.workload.demand
    assert other is not None and other.documents_per_year is None


def test_a_limit_with_a_blank_after_its_colon_says_how_to_write_it(tmp_path: Path) -> None:
    (told,) = refused("model: llama-3.1-8b\nttft: p95: 1s\n", tmp_path)
    assert told.startswith("2: is not valid YAML") and told.endswith(
        "write p95:1s without a blank, or put the value in quotes"
    )


def test_a_file_states_gpus_as_the_option_does(tmp_path: Path) -> None:
    path = written("model: llama-3.1-8b\ngpu: h100-sxm\ngpus: 8\nisl: 500\nosl: 100\n", tmp_path)
    assert ask(path) == ask(path, gpus=8) and ask(path).rules.gpu_budget == 8
    assert ask(path, gpus=4).rules.gpu_budget == 4
