"""What a repository has decided about `bowline lint`: the file `.bowline-lint.yaml` in the present folder.

Its comments give the reasons. A flag adds to the lists, and precedes the other values.
"""

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from bowline.api.field_error import FieldError
from bowline.api.schema import schema_errors
from bowline.framework.config import SCHEMA, ConfigurationError
from bowline.framework.strict_yaml import StrictLoader

FILE: Final = ".bowline-lint.yaml"


class LintSettings(BaseModel):
    """``ignore``: ids of rules; ``exclude``: patterns of files; the others as the flags of the same names."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="forbid", strict=True, defer_build=True)

    ignore: list[str] = []
    exclude: list[str] = []
    assume_scheduler: str = ""
    require_scheduler: bool = False


def read_settings(file: Path) -> LintSettings:
    """Return the settings in the file; the defaults if it does not exist. Raises ConfigurationError."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), StrictLoader)  # noqa: S506 - it is a SafeLoader
        return LintSettings.model_validate({} if content is None else content)
    except FileNotFoundError:
        return LintSettings.model_construct()
    except ValidationError as error:
        errors = schema_errors(SCHEMA, "", error.errors())
        raise ConfigurationError([replace(each, path=f"{file}: {each.path}") for each in errors]) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigurationError([FieldError(SCHEMA, str(file), "", " ".join(str(error).split()))]) from error


def require_rules(ids: Iterable[str]) -> None:
    """Raise ConfigurationError for ids of rules that do not exist."""
    if not ids:
        return
    module = import_module("bowline_cli.rules")  # of the whole product; lint needs its own rules only
    rules = module.all_rules()
    hints = {name: ", ".join(module.similar_rules(name, list(rules))) for name in ids if name not in rules}
    texts = {name: f"did you mean {hint}?" if hint else "bowline rule lists all" for name, hint in hints.items()}
    if texts:
        errors = [
            FieldError(SCHEMA, "ignore", name, f"there is no such rule; {text}") for name, text in texts.items()
        ]
        raise ConfigurationError(errors)
