"""The chart as parsed objects: rendered by the real Helm, found by kind and name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bowline.api.meta import Object
from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.helm import Helm

CHART = Path(__file__).parents[2] / "charts" / "bowline"
RELEASE, NAMESPACE = "bowline", "bowline-system"
# The only value without a default.
IMAGE: Mapping[str, Any] = {"image": {"registry": "registry.example"}}
# With the hooks, as Helm renders them for a cluster.
REQUIRED: Mapping[str, Any] = {**IMAGE, "hooks": {"check": True, "uninstall": True, "test": True}}


@dataclass(frozen=True, slots=True)
class Rendered:
    """All objects of one rendering, in Helm's order."""

    objects: Sequence[Object]
    by_kind: Mapping[tuple[str, str], Object] = field(init=False)

    def __post_init__(self) -> None:
        by_kind = {(obj["kind"], obj["metadata"]["name"]): obj for obj in self.objects}
        assert len(by_kind) == len(self.objects), "two objects of one kind and name"
        object.__setattr__(self, "by_kind", by_kind)

    def get(self, kind: str, name: str) -> Any:
        """Return the object; a KeyError contains the missing name."""
        return self.by_kind[kind, name]

    def configuration(self) -> str:
        """Return the name of the ConfigMap that both processes mount."""
        (volume,) = (
            volume
            for volume in self.get("Deployment", f"{RELEASE}-reconciler")["spec"]["template"]["spec"]["volumes"]
            if volume["name"] == "config"
        )
        name: str = volume["configMap"]["name"]
        return name

    def config_text(self) -> str:
        """Return the configuration document that both processes mount."""
        text: str = self.get("ConfigMap", self.configuration())["data"]["config.yaml"]
        return text

    def of_kind(self, *kinds: str) -> list[Any]:
        """Return the objects of these kinds."""
        return [obj for obj in self.objects if obj["kind"] in kinds]

    def hooks(self) -> Iterator[tuple[str, Any]]:
        """Return every webhook entry, with ``mutating`` or ``validating``."""
        for configuration in self.of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            word = configuration["kind"].removesuffix("WebhookConfiguration").lower()
            for hook in configuration["webhooks"]:
                yield word, hook


@dataclass(frozen=True, slots=True)
class Chart:
    """Renders the chart in the checkout."""

    helm: Helm

    def render(
        self, values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
    ) -> Rendered:
        """Render with these values over the chart's and the required ones; CommandError with Helm's message."""
        chart_values = merged(REQUIRED, values or {})
        return Rendered(self.helm.template(ChartRelease(release, CHART, namespace, set_values=chart_values)))


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps by key, everything else replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both_maps = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_maps else value
    return result
