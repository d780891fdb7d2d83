"""An organisation's policy: every pod has a cost centre, which stays, and images of the organisation's registries; a
scheduler that names no backoffLimit gets a failure back after two retries.
"""

from collections.abc import Iterable, Mapping

from bowline import Access, AdmissionInfo, AdmissionPlugin, FieldError, MutableObject, Object, PluginConfig, Rule

COST_CENTRE = "example.com/cost-centre"
MISSING = Rule("example_policy/cost-centre", f"a new pod has no label `{COST_CENTRE}`")
CHANGED = Rule("example_policy/cost-centre-change", f"the label `{COST_CENTRE}` changes")
IMAGE = Rule("example_policy/image", "an image is from a registry that `args.registries` does not list")


class PolicyConfig(PluginConfig):
    """Arguments of the plugin."""

    registries: tuple[str, ...]


class Policy(AdmissionPlugin[PolicyConfig]):
    """Denies other pods, when they are created and when they are changed."""

    name = "example_policy"
    rules = (MISSING, CHANGED, IMAGE)
    # Without these, the API server does not call validate_pod for a change of the label or of an image.
    access = Access(reviewed_labels=(COST_CENTRE,), reviewed_fields=("spec.containers",))

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        path, centre = f"metadata.labels[{COST_CENTRE}]", _cost_centre(pod)
        if old is None and not centre:
            yield FieldError(MISSING, path, centre, "name the cost centre that pays for the pod")
        if old is not None and centre != _cost_centre(old):
            message = f"must stay {_cost_centre(old)!r}; create another pod"
            yield FieldError(CHANGED, path, centre, message)
        images: set[str] = {container["image"] for container in old["spec"]["containers"]} if old else set()
        for index, container in enumerate(pod["spec"]["containers"]):
            image = container.get("image", "")
            if image not in images and not image.startswith(self.args.registries):
                message = f"must begin with one of {', '.join(self.args.registries)}"
                yield FieldError(IMAGE, f"spec.containers[{index}].image", image, message)

    def mutate_bind_request(self, request: MutableObject, info: AdmissionInfo) -> None:
        if "backoffLimit" not in request.raw["spec"]:
            request.set(2, "spec", "backoffLimit")


def _cost_centre(pod: Object) -> str | None:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(COST_CENTRE)
