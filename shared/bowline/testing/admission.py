"""The review of a trial's pod and request by the product's admission chain, as its webhook makes it.

No webhook runs: the API server fills in its defaults by a dry run, the chain reviews that, and the result is created.
"""

from collections.abc import Sequence
from typing import Any, Final

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo, Plugin, hooks_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError
from bowline.kube.resources import PODS, Resource
from bowline.plugins.reads import unread_annotations

# UID of every review: values that plugins generate from it are equal in all trials.
_REVIEW: Final = "5f0c6d3a-0000-4000-8000-000000000000"


class NotAdmittedError(Exception):
    """A pod or request of a trial is denied; the message says why."""


async def create_reviewed(
    client: KubeClient, plugins: Sequence[Plugin], resource: Resource, namespace: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Create an object after its review. Raises NotAdmittedError if the plugins or the API server deny it."""
    try:
        if any(map(_reviews, plugins)):
            body = await client.create(resource, namespace, body, params={"dryRun": "All"})
            body["metadata"].pop("managedFields", None)
            _review(AdmissionChain(plugins, Settings(), unread=unread_annotations(plugins)), resource, body)
        return await client.create(resource, namespace, body)
    except ApiError as error:
        raise NotAdmittedError(f"the API server denies the {resource.kind} that is tried: {error}") from error


def _review(chain: AdmissionChain, resource: Resource, body: dict[str, Any]) -> None:
    """Mutate the object and validate the result. Raises NotAdmittedError."""
    info = AdmissionInfo(namespace=body["metadata"]["namespace"], kind=resource.kind, request_uid=_REVIEW)
    verdict = chain.admit_pod(body, info) if resource is PODS else chain.admit_bind_request(body, info)
    if verdict.errors:
        texts = "; ".join(f"{error} ({error.rule})" for error in verdict.errors)
        raise NotAdmittedError(f"the webhook denies the {resource.kind} that is tried: {texts}")


def _reviews(plugin: Plugin) -> bool:
    """Return whether the webhook calls the plugin."""
    return bool(hooks_of(type(plugin))) or (type(plugin).has_side_effects is not Plugin.has_side_effects)
