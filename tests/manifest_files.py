"""The objects of a file, and the rules of a release, as `bowline lint` has them."""

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings, parse_settings
from bowline.framework.registry import Registry
from bowline.framework.strict_yaml import YamlBudget
from bowline.plugins.catalog import BUILTINS
from bowline_cli.manifests import Manifest, UnreadableError, read_file
from bowline_cli.verdicts import with_ready_kinds
from tests.live import Live


def read_manifests(file: str) -> list[Manifest]:
    """Return the objects of a file. Raises UnreadableError if it cannot be read completely."""
    content = read_file(file, YamlBudget(), is_named=True)
    for error in content.errors:
        raise UnreadableError(error)
    return content.manifests


def released_chain(live: Live) -> AdmissionChain:
    """Return the chain of lint with the webhook's configuration, without plugins of tests: they review nothing."""
    maps = live.cluster.api.get("/api/v1/namespaces/bowline-system/configmaps")["items"]
    (text,) = [item["data"]["config.yaml"] for item in maps if "config.yaml" in (item.get("data") or {})]
    settings = with_ready_kinds(parse_settings(text))
    built_in: Settings = settings.model_copy(update={"plugins": ()})
    return AdmissionChain(Registry(BUILTINS, discover=dict).build(built_in), settings)
