"""The command of a systemd unit as a shell script of the same lines."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\[[A-Za-z][\w-]*\]\s*\Z")
_SETTING = re.compile(r"\s*(\w+)\s*=\s*(.*)\Z", re.DOTALL)
_LOADED = re.compile(
    r"(?m)^\s*EnvironmentFile\s*=\s*-?\s*(\S+)\s*$"
)  # its variables take precedence, wherever it stands
START = "ExecStart"
SETTINGS = {START: "", "Environment": "export "}  # with what they are in a shell; all others start nothing
PREFIXES = "-@:+!"  # of a command, which say how it is run
COMMENTS = ("#", ";")


def is_unit(text: str) -> bool:
    """Whether a text is a unit of systemd: its first line, except for comments, names a section."""
    lines = (line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(COMMENTS))
    return _HEADER.match(next(lines, "")) is not None


def as_script(text: str) -> str:
    """The unit's command and variables as a script. Comments stay, since they may state facts of the command."""
    lines, kept, owner, loaded = list[str](), False, "", "".join(f"source {name}; " for name in _LOADED.findall(text))
    owners = list[str]()  # the setting of each line
    for line in text.splitlines():
        continued = bool(lines) and lines[-1].endswith("\\")
        if not continued and not line.lstrip().startswith(COMMENTS):
            setting = _SETTING.match(line)
            before = SETTINGS.get(setting[1]) if setting else None
            kept, owner = before is not None, setting[1] if setting else ""
            if setting and before is not None:
                if not setting[2].strip():  # an empty setting resets what stands before it
                    for at in (at for at, owner in enumerate(owners) if owner == setting[1]):
                        lines[at] = "\\" * lines[at].endswith("\\")
                line = before + loaded * (setting[1] == START) + setting[2].lstrip(PREFIXES)
        elif not continued:
            kept, owner = line.lstrip().startswith("#"), ""
        owners.append(owner)
        lines.append(line if kept else "\\" * line.endswith("\\"))
    return "\n".join(lines)
