"""The resources that Bowline uses and their URL paths. Pure.

Paths are built from names that users choose (a BindRequest names its pod freely), so every part is quoted: a name can
never address another resource.
"""

import re
from dataclasses import dataclass, replace
from urllib.parse import quote

from bowline.api import names
from bowline.api.meta import Object, ObjectRef, key_of, uid_of, version_of

# Needs no quoting: nearly every name. Excludes "." and "..", which have a meaning in paths.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API, such as ``pods``. ``metadata_only`` requests objects without spec and status."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    metadata_only: bool = False

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """The path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def as_metadata(self) -> "Resource":
        """Return the same resource, read as PartialObjectMetadata."""
        return replace(self, metadata_only=True)

    def ref(self, obj: Object) -> ObjectRef:
        """Return the reference to a raw object of this resource, in the version that was read."""
        return ObjectRef(self.api_version, self.kind, key_of(obj), uid_of(obj), version_of(obj))

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or an object's subresource.

        The namespace is ignored for cluster-scoped resources; an empty one means all namespaces.
        """
        path = self.prefix
        if namespace and self.namespaced:
            path += f"/namespaces/{quote_part(namespace)}"
        path += f"/{self.plural}"
        if name:
            path += f"/{quote_part(name)}"
        if subresource:
            path += f"/{subresource}"
        return path

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def quote_part(part: str) -> str:
    """Return the text as one part of a URL path."""
    return part if _PLAIN.fullmatch(part) else quote(part, safe="").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource to list and watch; empty selectors select all.

    ``is_optional``: the resource is another project's, which may not be served, readable or answered.
    """

    resource: Resource
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    is_optional: bool = False

    def __str__(self) -> str:
        where = [f"in {self.namespace}"] if self.namespace else []
        selectors = [selector for selector in (self.label_selector, self.field_selector) if selector]
        return " ".join([str(self.resource), *where, *(f"with {selector}" for selector in selectors)])


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
PERSISTENTVOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENTVOLUMECLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
BINDREQUESTS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
# Another project's CRD has no selectable fields: see ``Reflector`` and ``rejects_fields``.
UNFINISHED_BINDREQUESTS = Selection(BINDREQUESTS, field_selector="status.phase!=Succeeded")
# Of plugin checks.
BINDCHECKS = Resource(names.DOMAIN, "v1alpha1", "bindchecks", names.BIND_CHECK_KIND)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
# Field selectors of pods whose containers have not ended, and of the others; of both on a node.
UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
BOUND_AND_UNENDED = f"spec.nodeName!=,{UNENDED}"
ENDED = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
BOUND_AND_ENDED = f"spec.nodeName!=,{ENDED}"
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
# The list of API groups, with its metric label.
API_GROUPS = Resource("", "", "apis", "APIGroupList", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
RESOURCECLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
# Kubernetes' own; KAI-Scheduler has another kind of the same name.
PODGROUPS = Resource(names.POD_GROUP_GROUP, names.POD_GROUP_VERSION, names.POD_GROUP_PLURAL, names.POD_GROUP_KIND)
KAI_PODGROUPS = Resource(names.GROUP, names.KAI_POD_GROUP_VERSION, names.POD_GROUP_PLURAL, names.POD_GROUP_KIND)
RESOURCESLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICETAINTRULES = Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False)
RUNTIMECLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
# NVIDIA's GPU operator.
CLUSTERPOLICIES = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
STORAGECLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
