"""The containers of a sharing pod that have no part of the share: they see no device. Pure.

The pod runs under the runtime class of shares, so without a value of their own the runtime gives them every GPU that
their image names. A DRA claim is no reason to see one: its driver adds its devices by CDI, which needs no variable.
Where plugin ``device_access`` is on it does the same for all pods, with its own rules, and nothing is done here.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.gpu_share import wants_share
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule
from bowline.framework.config import Settings
from bowline.plugins.visible_devices import HARMLESS, ContainerRef, containers_of, is_empty, new_ephemeral_containers

OTHER_CONTAINER: Final = Rule(
    "gpu_sharing/other-container",
    "a container of a sharing pod that has no part of the share sets `NVIDIA_VISIBLE_DEVICES` to a value other than "
    "`void` or `none`, or lacks `void` at the validating webhook",
    cause=DenialCause.FORBIDDEN,
    invalid="""annotations: {gpu-fraction: "0.5"}
containers:
  - {name: main, image: train}
  - {name: side, image: train, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}""",
    valid="""annotations: {gpu-fraction: "0.5"}
containers:
  - {name: main, image: train}
  - {name: side, image: train}""",
)


def hides_devices(settings: Settings) -> bool:
    """Return whether plugin ``gpu_sharing`` hides the devices."""
    return not {entry.name: entry.enabled for entry in settings.plugins}.get("device_access", False)


def other_containers(pod: Object) -> Iterator[ContainerRef]:
    """Yield the containers without a part of the share, if the pod has one, and without GPUs of their own.

    An only container, as of most pods, has the share: another name of it is denied.
    """
    spec = pod["spec"]
    if wants_share(pod) and (len(spec.get("containers") or ()) > 1 or spec.get("initContainers")):
        refs = containers_of(pod, (), claims_count=False)
        yield from (ref for ref in refs if not ref.gpu)


def debuggers(pod: Object, old: Object) -> Iterable[ContainerRef]:
    """Return the ephemeral containers that are being added to a sharing pod."""
    return new_ephemeral_containers(pod, old) if wants_share(pod) else ()


def other_container_errors(refs: Iterable[ContainerRef], *, is_final: bool) -> Iterator[FieldError]:
    """Yield an error for each value set by hand, and at the final hook for each container that sees a device."""
    for ref in refs:
        for index, entry in ref.entries:
            value = entry.get("valueFrom") or entry.get("value")
            if not is_empty(entry) and value not in HARMLESS:
                path = f"{ref.path}.env[{index}].{'valueFrom' if entry.get('valueFrom') else 'value'}"
                message = (
                    'must be "void" or "none": only the container of the share sees its device; remove the entry, or '
                    f"name this container in {names.GPU_FRACTION_CONTAINER}"
                )
                yield FieldError(OTHER_CONTAINER, path, value, message)
        if is_final and ref.sees_image:
            message = (
                f"lacks {names.VISIBLE_DEVICES}=void, which the mutating webhook adds: it was unavailable or "
                "something changed the pod after it; create it again, or add it yourself"
            )
            yield FieldError(OTHER_CONTAINER, f"{ref.path}.env", None, message)
