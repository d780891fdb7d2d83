"""``bowline plugin new``: the folder ``plugin_template``, with the names of a plugin in it."""

import argparse
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bowline.plugins.catalog import BUILTINS
from bowline.runtime.version import DISTRIBUTION, bowline_version

EXIT_USAGE = 2
# A distribution's name may neither end with a separator nor have two in a row.
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Of the template's files: they are no modules of this package.
_SUFFIX = ".in"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Write a distribution with a plugin. Exit status: 0 written, 2 a name or folder is not usable."
    )
    parser.add_argument("name", help="the plugin's name in the configuration, such as licence or network_setup")
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, help="where; a folder that does not exist (default: the name)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the files; return the exit status."""
    name, folder = options.name, options.folder or Path(options.name)
    try:
        error = _error(name, folder)
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


def _error(name: str, folder: Path) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > 40:
        rule = "lower-case letters, digits and single _ between them, a letter first, at most 40"
        return f"the name {name!r} must have {rule}"
    if any(builtin.plugin.name == name for builtin in BUILTINS):
        return f"{name} is a built-in plugin; choose another name"
    if folder.exists():
        return f"{folder} exists; name a new folder with --folder"
    return ""
