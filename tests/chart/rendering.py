"""The chart as parsed objects: rendered by the real Helm, once for equal values, found by kind and name."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bowline.api.meta import Object
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import ChartRelease, Helm

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
    """Renders the chart in the checkout. Nobody may change what it returns: equal values have one rendering."""

    helm: Helm
    _renderings: dict[str, Rendered] = field(default_factory=dict)

    def render(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        release: str = RELEASE,
        namespace: str = NAMESPACE,
        files: Sequence[Path] = (),
    ) -> Rendered:
        """Render with these values over those of the files and the required ones; else CommandError."""
        chart_values = merged(REQUIRED, values or {})
        key = json.dumps([chart_values, release, namespace, [str(file) for file in files]], sort_keys=True)
        if key not in self._renderings:
            chart_release = ChartRelease(release, CHART, namespace, files, chart_values)
            self._renderings[key] = Rendered(self.helm.template(chart_release))
        return self._renderings[key]

    def refusal(self, values: Mapping[str, Any]) -> str:
        """Return Helm's message, with which it refuses these values."""
        with pytest.raises(CommandError) as caught:
            self.render(values)
        return str(caught.value)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps by key, everything else replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both_maps = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_maps else value
    return result
