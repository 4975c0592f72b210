"""Engine profiles and the laws of resolving them: versions, conditions, sources and faults."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from engine_profiles import CARDS, ENGINES, FILES, VLLM, boundaries, on
from hypothesis import given
from hypothesis import strategies as st

from sizing.model.settings import SettingsConditions, check_version, resolve, source_of
from sizing.specs.engine import Engine, EngineSettings, Windows
from sizing.specs.errors import InputError
from sizing.specs.units import parse_version

DEPLOYMENTS = [
    on(gpu, tp, pp, attention)
    for gpu, (tp, pp), attention in itertools.product(
        CARDS, ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (16, 2)), ("mla", "hybrid", "other")
    )
]

DEPLOYMENTS += [on(gpu, 8, 1, "mla", sparse) for gpu in CARDS for sparse in ("indexed", "compressed")]

DEPLOYMENTS += [replace(on("H100 SXM 80GB"), between_nodes=True), replace(on("T4 16GB"), architecture="volta")]

DEPLOYMENTS += [replace(on("H100 SXM 80GB"), windows=windows) for windows in get_args(Windows)]


# --- every profile --------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", FILES)
def test_a_profile_starts_with_its_name_and_aliases(stem: str) -> None:
    lines = FILES[stem].read_text(encoding="utf-8").splitlines()
    first, second = [line for line in lines if not line.startswith("#")][:2]
    assert first == f"name: {stem}"
    assert second.startswith("aliases: [") and second.endswith("]")


def test_no_two_engines_answer_to_one_name() -> None:
    names = [n.lower() for engine in ENGINES.values() for n in {engine.name, *map(str.lower, engine.aliases)}]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("stem", FILES)
def test_a_profile_has_exactly_the_known_settings(stem: str) -> None:
    assert set(ENGINES[stem].settings) == set(EngineSettings.model_fields)


@pytest.mark.parametrize("stem", FILES)
def test_every_version_at_a_boundary_resolves_on_every_deployment(stem: str) -> None:
    """Each version on a fifth of the deployments, in turn: neighbours share most rows, so five versions meet every deployment."""
    engine = ENGINES[stem]
    assert boundaries(engine) and len(DEPLOYMENTS) >= 5
    for turn, version in enumerate(boundaries(engine)):
        for deployment in DEPLOYMENTS[turn % 5 :: 5]:
            settings = resolve(engine, version, deployment)
            sized_by = [settings.memory_fraction, settings.reserve]
            assert sum(value is not None for value in sized_by) == 1, (version, deployment)
            assert settings.cuda_graphs.low_gib <= settings.cuda_graphs.gib <= settings.cuda_graphs.high_gib
            assert settings.graph_sizes is None or settings.graph_sizes.step_until <= settings.graph_sizes.most


@pytest.mark.parametrize("stem", FILES)
def test_every_row_decides_somewhere(stem: str) -> None:
    """A row that an earlier one always hides is a mistake of order."""
    engine = ENGINES[stem]
    for setting, rows in engine.settings.items():
        idle = {id(row): row for row in rows}
        for version, deployment in itertools.product(boundaries(engine), DEPLOYMENTS):
            idle.pop(id(source_of(engine, version, deployment, setting)), None)
            if not idle:
                break
        assert list(idle.values()) == [], setting


@pytest.mark.parametrize("stem", FILES)
def test_what_was_not_read_is_explained(stem: str) -> None:
    for setting, rows in ENGINES[stem].settings.items():
        for row in rows:
            explained = row.note is not None or row.source.startswith("estimate")
            assert row.evidence == "read" or explained, (setting, row)
            published = row.source.startswith("https://") or "(PyPI)" in row.source
            assert row.evidence != "measured" or published, (setting, row)


@pytest.mark.parametrize("stem", FILES)
def test_versions_of_a_row_are_in_order(stem: str) -> None:
    for row in itertools.chain.from_iterable(ENGINES[stem].settings.values()):
        since, until = parse_version(row.since), parse_version(row.until or ENGINES[stem].newest)
        assert since[: len(until)] <= until


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.19", (0, 19)),
        ("0.19.0", (0, 19, 0)),
        ("v0.19.0", (0, 19, 0)),
        ("0.4.6.post5", (0, 4, 6, 5)),
        ("1.2.0rc5", (1, 2, 0)),
        ("1.1.0rc2.post2", (1, 1, 0)),
        ("0.20.0rc1.dev", (0, 20, 0)),
        ("0.6.4.dev4+gc9fc1608", (0, 6, 4)),
    ],
)
def test_versions_as_engines_write_them(text: str, parts: tuple[int, ...]) -> None:
    assert parse_version(text) == parts


@pytest.mark.parametrize("text", ["", "latest", "0.19.", ".19", "0.19-rc", "1.2+", "0.1 9", "nightly-dev-20260402"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        parse_version(text)


RELEASES = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)


def written(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


@given(RELEASES)
def test_a_release_reads_back_as_written(parts: tuple[int, ...]) -> None:
    assert parse_version(written(parts)) == parts


@given(RELEASES, RELEASES)
def test_versions_order_by_number_not_by_letter(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (parse_version(written(one)) < parse_version(written(other))) == (one < other)


@given(RELEASES, st.sampled_from(["a1", "b2", "rc0", "rc5", "rc1.dev", ".dev7", "rc2.post2"]))
def test_a_pre_release_orders_as_its_release(parts: tuple[int, ...], suffix: str) -> None:
    assert parse_version(written(parts) + suffix) == parts


@given(RELEASES, st.integers(1, 9))
def test_a_post_release_comes_after_its_release(parts: tuple[int, ...], post: int) -> None:
    assert parse_version(f"{written(parts)}.post{post}") > parts


PARTS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


def profile(**rows: list[dict[str, Any]]) -> Engine:
    """VLLM's newest values for every setting, as one row each, except for the rows given."""
    newest = resolve(VLLM, VLLM.newest, on("H100 SXM 80GB")).model_dump()
    settings: dict[str, Any] = {
        name: [{"since": "0", "value": value, "source": "test", "evidence": "assumed"}]
        for name, value in newest.items()
    }
    for name, given_rows in rows.items():
        settings[name] = [{"source": "test", "evidence": "assumed", **row} for row in given_rows]
    return Engine.model_validate(
        {
            "name": "test-engine",
            "oldest": "0",
            "newest": "99",
            "kept_16bit": [],
            "settings": settings,
            "source": "test",
            "date": "2026-01",
        }
    )


@given(PARTS, PARTS, st.integers(1, 3), PARTS)
def test_a_row_holds_from_since_to_all_that_until_covers(
    since: tuple[int, int, int], until: tuple[int, int, int], depth: int, version: tuple[int, int, int]
) -> None:
    engine = profile(
        max_num_seqs=[
            {"since": written(since), "until": written(until[:depth]), "value": 7},
            {"since": "0", "value": 8},
        ]
    )
    inside = since <= version and version[:depth] <= until[:depth]
    assert resolve(engine, written(version), on("RTX 4090")).max_num_seqs == (7 if inside else 8)


def test_a_short_version_means_its_first_release() -> None:
    h100 = on("H100 SXM 80GB")
    assert resolve(VLLM, "0.19", h100) == resolve(VLLM, "0.19.0", h100)
    assert resolve(VLLM, "0.8", on("A100 SXM 80GB")).max_num_batched_tokens == 2048  # 0.8.5 has 8192


# --- conditions, sources and faults ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "deployment", "holds"),
    [
        ({"min_memory_gib": 80}, on("A100 SXM 80GB"), True),  # 81920 MiB = 80 GiB exactly
        ({"below_memory_gib": 80}, on("A100 SXM 80GB"), False),
        ({"below_memory_gib": 80}, on("H100 SXM 80GB"), True),  # 81559 MiB = 79.65 GiB
        ({"min_gpus": 4}, on("RTX 4090", 2, 2), True),
        ({"min_gpus": 5}, on("RTX 4090", 2, 2), False),
        ({"max_gpus": 3}, on("RTX 4090", 2, 2), False),
        ({"min_tp": 4}, on("RTX 4090", 2, 2), False),
        ({"min_pp": 2}, on("RTX 4090", 2, 2), True),
        ({"gpu_contains": ["H100", "a100"]}, on("A100 SXM 40GB"), True),
        ({"gpu_contains": ["H100"]}, on("A100 SXM 40GB"), False),
        ({"gpu_lacks": ["a100"]}, on("A100 SXM 40GB"), False),
        ({"architecture": ["blackwell"]}, on("RTX PRO 6000 Blackwell Server"), False),
        ({"attention": "mla"}, on("RTX 4090", attention="mla"), True),
        ({"attention": "mla"}, on("RTX 4090", attention="hybrid"), False),
        ({"min_tp": 2, "min_memory_gib": 80}, on("RTX 4090", 2), False),
    ],
)
def test_a_condition_holds_when_each_part_does(
    when: dict[str, Any], deployment: SettingsConditions, holds: bool
) -> None:
    engine = profile(max_num_seqs=[{"since": "0", "when": when, "value": 7}, {"since": "0", "value": 8}])
    assert resolve(engine, "1", deployment).max_num_seqs == (7 if holds else 8)


def test_the_first_row_that_holds_wins_and_is_the_source() -> None:
    engine = profile(max_num_seqs=[{"since": "2", "value": 1}, {"since": "1", "value": 2}, {"since": "0", "value": 3}])
    for version, value in (("0.5", 3), ("1.5", 2), ("2.5", 1)):
        assert resolve(engine, version, on("RTX 4090")).max_num_seqs == value
        assert source_of(engine, version, on("RTX 4090"), "max_num_seqs").value == value


def test_equal_arguments_share_one_result() -> None:
    assert resolve(VLLM, "0.19.0", on("RTX 4090")) is resolve(VLLM, "0.19.0", on("RTX 4090"))


def test_profiles_of_one_name_are_told_apart() -> None:
    one, other = (profile(max_num_seqs=[{"since": "0", "value": value}]) for value in (1, 2))
    assert [resolve(engine, "1", on("RTX 4090")).max_num_seqs for engine in (one, other)] == [1, 2]


def test_a_setting_without_a_row_names_engine_setting_and_version() -> None:
    engine = profile(host=[{"since": "5", "value": None}], admission=[])
    with pytest.raises(InputError) as caught:
        resolve(engine, "1.0", on("RTX 4090"))
    assert [fault.field for fault in caught.value.faults] == ["settings.admission", "settings.host"]
    assert all("test-engine 1.0" in fault.message for fault in caught.value.faults)
    with pytest.raises(InputError, match=re.escape("settings.host: test-engine 1.0")):
        source_of(engine, "1.0", on("RTX 4090"), "host")


def test_a_wrong_value_names_engine_setting_and_version() -> None:
    engine = profile(max_num_seqs=[{"since": "0", "value": 0}], admission=[{"since": "0", "value": "maybe"}])
    with pytest.raises(InputError) as caught:
        resolve(engine, "1.0", on("RTX 4090"))
    assert {fault.field for fault in caught.value.faults} == {"settings.max_num_seqs", "settings.admission"}
    assert all("test-engine 1.0" in fault.message for fault in caught.value.faults)


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean max_num_seqs"):
        source_of(VLLM, "0.19.0", on("RTX 4090"), "max_num_seq")


def test_no_version_means_the_newest() -> None:
    assert check_version(VLLM, None) == "0.33.0"


@pytest.mark.parametrize("version", ["0.33", "0.33.0", "0.33.0.post1", "0.19", "0.4", "0.20.0rc1.dev", " 0.19.0 "])
def test_known_versions_are_accepted(version: str) -> None:
    assert check_version(VLLM, version) == version.strip()


@pytest.mark.parametrize("version", ["0.33.1", "0.34", "1.0", "0.3.3", "0", "latest"])
def test_an_unknown_version_lists_the_known_range(version: str) -> None:
    with pytest.raises(InputError, match=re.escape("allowed: 0.4.0 to 0.33.0")) as caught:
        check_version(VLLM, version)
    assert version in str(caught.value)
    with pytest.raises(InputError):
        resolve(VLLM, version, on("RTX 4090"))
