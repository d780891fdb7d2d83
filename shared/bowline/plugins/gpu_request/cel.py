"""The CEL in which the chart's policy has this plugin's rules: variables of the policy, and parts of expressions.

The chart prepends the variables ``sharing`` and ``gpuDeviceClasses``, which are its settings.
"""

import json
from collections.abc import Mapping

from bowline.api import names


def text(value: str) -> str:
    """Return a CEL string literal; all JSON escapes are valid in CEL."""
    return json.dumps(value)


def has(key: str) -> str:
    """Return CEL that is true if the pod has the annotation."""
    return f"{text(key)} in variables.annotations"


def value(key: str) -> str:
    """Return CEL for the value of an annotation that the pod has."""
    return f"variables.annotations[{text(key)}]"


def matches(key: str, pattern: str) -> str:
    """Return CEL that is true if the annotation's value matches."""
    return f"{value(key)}.matches({text(pattern)})"


def is_not_whole(key: str, most: int) -> str:
    """Return CEL that is true unless the value is an integer from 1 to ``most``; equal lengths compare as text."""
    largest = str(most)
    shorter = matches(key, rf"^0*[1-9][0-9]{{0,{len(largest) - 2}}}$")
    as_long = matches(key, rf"^0*[1-9][0-9]{{{len(largest) - 1}}}$")
    tail = f"{value(key)}.substring(size({value(key)}) - {len(largest)})"
    return f"!({shorter} || ({as_long} && {tail} <= {text(largest)}))"


def requests_resource(container: str, condition: str) -> str:
    """Return CEL that is true if a container requests a resource ``r`` of that condition.

    A request counts where there is no limit. Policies see quantities as stored: zero is "0". The condition precedes
    the reads of quantities, which cost more.
    """
    limits, requests = f"{container}.resources.limits", f"{container}.resources.requests"
    return (
        f"has({container}.resources) && ((has({limits}) && {limits}.exists(r, {condition} && {limits}[r] != '0')) || "
        f"(has({requests}) && {requests}.exists(r, {condition} && {requests}[r] != '0' "
        f"&& !(has({limits}) && r in {limits}))))"
    )


def requests_named(container: str, name: str) -> str:
    """Return the same for one resource, which is looked up."""
    limits, requests = f"{container}.resources.limits", f"{container}.resources.requests"
    key = text(name)
    return (
        f"has({container}.resources) && (has({limits}) && {key} in {limits} ? {limits}[{key}] != '0' : "
        f"has({requests}) && {key} in {requests} && {requests}[{key}] != '0')"
    )


def some_container(condition: str) -> str:
    """Return CEL that is true if a container ``c`` of a sharing pod meets the condition."""
    return f"variables.shareKey != '' && variables.containers.exists(c, {condition})"


def variables() -> Mapping[str, str]:
    """Return the policy's variables that the rules refer to, in the order in which they build on one another."""
    spec, name, default = "object.spec", names.GPU_FRACTION_CONTAINER, names.DEFAULT_CONTAINER
    is_prepared = f"({has(names.SHARED_GPU_CONFIGMAP)} && {value(names.SHARED_GPU_CONFIGMAP)} != '')"
    is_default = f"{has(default)} && !{is_prepared} && {spec}.containers.exists(c, c.name == {value(default)})"
    share = "".join(f"{has(key)} ? {text(key)} : " for key in names.SHARE_ANNOTATIONS)
    return {
        "annotations": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
        "shareKey": f"{share}''",
        "containers": f"(has({spec}.initContainers) ? {spec}.initContainers : []) + {spec}.containers",
        "target": (
            f"{has(name)} ? variables.containers.filter(c, c.name == {value(name)}) : {is_default} ? "
            f"{spec}.containers.filter(c, c.name == {value(default)}) : [{spec}.containers[0]]"
        ),
    }
