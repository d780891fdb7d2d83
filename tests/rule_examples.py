"""The manifests of the rules' examples: what a rule states as invalid and as valid, as objects."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from bowline.api import names
from bowline.framework.strict_yaml import StrictLoader

IMAGE = "example.com/main"


def example_object(example: str, name: str = "p", scheduler: str = "example-scheduler") -> dict[str, Any]:
    """Return the pod or the BindRequest of an example. ``scheduler``: of a pod whose example names none."""
    fields: dict[str, Any] = json.loads(json.dumps(yaml.load(example, StrictLoader)))  # noqa: S506 - it is a SafeLoader
    if "kind" in fields:
        return fields
    if "podName" in fields:
        return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": fields}
    metadata = {"name": name, **_taken(fields, "annotations", "labels")}
    container = {"name": "main", "image": IMAGE, "resources": _taken(fields, "limits", "requests")}
    spec = {"schedulerName": scheduler, "containers": [container], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _taken(fields: dict[str, Any], *keys: str) -> Mapping[str, Any]:
    return {key: fields.pop(key) for key in keys if key in fields}
