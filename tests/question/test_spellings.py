"""Keys of a workload file spelt like options: the same workload as with the file's own keys, at any level, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.catalog.files import DataFile
from sizing.catalog.workloads import OPTION, respelt
from sizing.question.fields import QUESTION_OPTIONS
from sizing.question.names import fleet_at, words, workload_at
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
    of_file = {word: field for word, field in words().items() if not field.startswith(OPTION)}
    for option in QUESTION_OPTIONS:
        for flag in option.flags:
            word = flag.partition("/")[0].strip().removeprefix(OPTION).replace("-", "_")
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
    told = refused("model: m\nisl: 3\nosl: 2\ndemand:\n  rps: many\n", tmp_path)
    assert len(told) == 1 and told[0].startswith("5: demand.rps: must be a number") and "'many'" in told[0]


def test_a_field_stated_twice_is_refused(tmp_path: Path) -> None:
    told = refused("model: m\ntokens: {isl: 3, osl: 2}\nisl: 4\n", tmp_path)
    assert told == ["3: isl: says the same as tokens.isl; state one of them"]


def test_an_unknown_key_says_what_may_be_meant(tmp_path: Path) -> None:
    told = refused("model: m\nisl: 3\nosl: 2\ngpus: 8\ndemand: {uzers: 5}\n", tmp_path)
    assert "gpus: unknown key; give it as an option: --gpus" in told[0]
    assert told[1].endswith("did you mean demand.concurrent_users?")
