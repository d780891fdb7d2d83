"""``bowline plugin``: commands for the authors and the operators of plugins; a table of sub-commands."""

import argparse
import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bowline.api.field_error import FieldError
from bowline.framework.config import ConfigurationError, load_settings
from bowline.framework.interface.plugin import access_value
from bowline.framework.plugin_class import ACCESS
from bowline.framework.registry import Registry, installed_plugins
from bowline.plugins.catalog import BUILTINS, plugin_access
from bowline.runtime.version import DISTRIBUTION, bowline_version

EXIT_USAGE: Final = 2
# A distribution's name may neither end with a separator nor have two in a row.
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Of the template's files: they are no modules of this package.
_SUFFIX: Final = ".in"
_HEADER: Final = "# Values of the chart, printed by `bowline plugin access`: what plugins need of the cluster.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = "Commands for plugins of your own. Exit status: 0 done, else as each command states."
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (summary, add) in COMMANDS.items():
        add(commands.add_parser(name, help=summary, allow_abbrev=False))


def _add_new(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of ``bowline plugin new``."""
    parser.description = (
        "Write a distribution with a plugin. Exit status: 0 written, 2 a name or folder is not usable."
    )
    parser.add_argument("name", help="the plugin's name in the configuration, such as licence or network_setup")
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, help="where; a folder that does not exist (default: the name)"
    )
    parser.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    """Write the files; return the exit status."""
    name, folder = options.name, options.folder or Path(options.name)
    try:
        error = _name_error(name, folder)
        if not error:
            _write(folder, files(name))
    except OSError as failure:
        error = f"{failure}; name another folder with --folder"
    if error:
        sys.stderr.write(f"bowline plugin new: {error}\n")
        return EXIT_USAGE
    sys.stdout.write(f"{folder} has the plugin {name}; its README.md lists the next commands\n")
    return 0


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def files(name: str) -> dict[str, str]:
    """Return the distribution's files, by path."""
    words = {
        "name": name,
        "module": f"bowline_{name}",
        "domain": name.replace("_", "-"),  # an annotation's prefix is a DNS name
        "distribution": f"bowline-{name.replace('_', '-')}",
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "bowline": DISTRIBUTION,
        "version": bowline_version(),
    }
    template = Path(__file__).with_name("plugin_template")
    return {
        _filled(str(path.relative_to(template)).removesuffix(_SUFFIX), words): _filled(path.read_text("utf-8"), words)
        for path in sorted(template.rglob(f"*{_SUFFIX}"))
    }


def _filled(text: str, words: Mapping[str, str]) -> str:
    """Return the text with each word in braces replaced by its value; other braces stay."""
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    return text


def _name_error(name: str, folder: Path) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > 40:
        rule = "lower-case letters, digits and single _ between them, a letter first, at most 40"
        return f"the name {name!r} must have {rule}"
    if any(builtin.plugin.name == name for builtin in BUILTINS):
        return f"{name} is a built-in plugin; choose another name"
    if folder.exists():
        return f"{folder} exists; name a new folder with --folder"
    return ""


def _add_access(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of ``bowline plugin access``: what plugins other than the built-in ones need."""
    parser.description = (
        "Print what plugins need of the cluster, as values of the chart, a file for helm upgrade. "
        "Exit status: 0 printed, 2 an invalid configuration or plugin."
    )
    what = "the cluster's Bowline configuration; without it every installed plugin counts as enabled"
    parser.add_argument("--config", type=Path, metavar="FILE", help=what)
    parser.set_defaults(run=_access)


def _access(options: argparse.Namespace) -> int:
    """Print the values; return the exit status."""
    try:
        if options.config is None:
            access: Sequence[Mapping[str, Any]] = list(_installed())
        else:
            access = plugin_access(Registry(BUILTINS).build(load_settings(options.config)))
    except ConfigurationError as error:
        sys.stderr.write(f"the configuration cannot be used:\n{error}\n")
        return EXIT_USAGE
    sys.stdout.write(_HEADER + yaml.safe_dump({"pluginAccess": access}, sort_keys=False, width=110))
    return 0


def _installed() -> Iterator[Mapping[str, Any]]:
    """Yield the access of every installed plugin, with the defaults of its arguments; no other one is needed, unless
    a rule names it. Raises ConfigurationError.
    """
    names = {point.name for point in installed_plugins()} - {builtin.plugin.name for builtin in BUILTINS}
    for kind in Registry(BUILTINS).classes(sorted(names)):
        fields = kind.config_model.model_fields.items()
        arguments = {
            name: entry.get_default(call_default_factory=True) for name, entry in fields if not entry.is_required()
        }
        try:
            yield access_value(kind, arguments)
        except KeyError as error:
            message = (
                "is named by a rule of the plugin's access, and has no default; give the configuration: --config FILE"
            )
            raise ConfigurationError(
                [FieldError(ACCESS, f"{kind.name}.args.{error.args[0]}", None, message)]
            ) from error


# Each adds its arguments and sets the default `run`.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "new": ("write a distribution with a plugin and its tests", _add_new),
    "access": ("print what plugins need of the cluster, as values of the chart", _add_access),
}
