"""What a repository has decided about `bowline lint`: the file `.bowline-lint.yaml` in the present folder.

Its comments give the reasons. A flag adds to the lists, and precedes the other values.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from bowline.framework.strict_yaml import StrictLoader

FILE: Final = ".bowline-lint.yaml"


class SettingsError(Exception):
    """The file, or the id of a rule, cannot be used; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class LintSettings:
    """``ignore``: ids of rules; ``exclude``: patterns of files; the others as the flags of the same names."""

    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    assume_scheduler: str = ""
    require_scheduler: bool = False


# Key of the file, field and type of its value.
_KEYS: Final[dict[str, tuple[str, type]]] = {
    "ignore": ("ignore", list),
    "exclude": ("exclude", list),
    "assumeScheduler": ("assume_scheduler", str),
    "requireScheduler": ("require_scheduler", bool),
}


def read_settings(file: Path) -> LintSettings:
    """Return the settings in the file; the defaults if it does not exist. Raises SettingsError."""
    try:
        content = _load(file.read_text())
    except FileNotFoundError:
        return LintSettings()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingsError(f"{file}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{file}: must be a mapping with the keys {', '.join(_KEYS)}")
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if key not in _KEYS:
            raise SettingsError(f"{file}: {key} is no key; there are {', '.join(_KEYS)}")
        name, kind = _KEYS[key]
        is_list = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        if not (is_list if kind is list else isinstance(value, kind)):
            required = "a list of strings" if kind is list else {str: "a string", bool: "true or false"}[kind]
            raise SettingsError(f"{file}: {key} must be {required}")
        fields[name] = tuple(value) if kind is list else value
    return LintSettings(**fields)


def require_rules(ids: tuple[str, ...]) -> None:
    """Raise SettingsError for the id of a rule that does not exist."""
    if not ids:
        return
    module = import_module("bowline_cli.rules")  # of the whole product; lint needs its own rules only
    rules = module.all_rules()
    for name in ids:
        if name not in rules:
            similar = ", ".join(module.similar_rules(name, list(rules)))
            hint = f"; did you mean {similar}?" if similar else "; bowline rule lists all"
            raise SettingsError(f"ignore: there is no rule {name}{hint}")


def _load(text: str) -> Any:
    loader = StrictLoader(text)
    try:
        return loader.get_single_data() or {}
    finally:
        loader.dispose()
