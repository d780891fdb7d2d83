"""The objects of a file, as `bowline lint` reads one that is named."""

from bowline.framework.strict_yaml import YamlBudget
from bowline_cli.manifests import Manifest, UnreadableError, read_file


def read_manifests(file: str) -> list[Manifest]:
    """Return the objects of a file. Raises UnreadableError if it cannot be read completely."""
    content = read_file(file, YamlBudget(), is_named=True)
    for error in content.errors:
        raise UnreadableError(error)
    return content.manifests
