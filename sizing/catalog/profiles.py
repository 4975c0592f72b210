"""How load and replicas go over time: profiles by hour, ready ones by name or a user's own by path, and how scaling goes."""

from __future__ import annotations

from pathlib import Path

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found, hyphenated, is_path
from sizing.catalog.paths import expanded
from sizing.errors import Fault, InputError, nearest
from sizing.specs.profile import Profile
from sizing.specs.scaling import Scaling


def profile_names() -> tuple[str, ...]:
    """Return the names (file stems) of all ready profiles, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def load_profile(path_or_name: str) -> Found[Profile]:
    """Return the profile in a file, or the ready one of that name.

    Raises InputError for an unknown name and for every fault of the file.
    """
    if is_path(path_or_name):
        path = expanded(path_or_name)
        return Found(validate(Profile, read_yaml(path)), path.stem, path)
    known, name = profile_names(), hyphenated(path_or_name)
    if name not in known:
        raise InputError(
            Fault(
                f"unknown load profile {path_or_name!r}",
                field="planning.profile",
                allowed=f"{', '.join(known)}, or the path of a file",
                nearest=nearest(name, known),
            )
        )
    path = _folder() / f"{name}.yaml"
    return Found(validate(Profile, read_yaml(path)), name, path)


def load_scaling() -> Found[Scaling]:
    """Return how a service follows its load where nothing else is stated."""
    path = data_folder("workloads") / "_scaling.yaml"
    return Found(validate(Scaling, read_yaml(path)), path.stem, path)


def _folder() -> Path:
    return data_folder("workloads") / "profiles"
