"""Admission chains for the webhook's tests: the built-in plugins, or one that marks and denies on request."""

from collections.abc import Iterable

from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework.admission import AdmissionChain, OnPluginError
from bowline.framework.config import Settings
from bowline.framework.interface.mutable import MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, PluginConfig
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS

BAD = Rule("marker/bad", "the annotation `bad` has words")
ODD = Rule("marker/odd", "there is the annotation `odd`", Severity.WARNS)
# The last word of its id is that of a built-in rule with another cause.
VALUE = Rule("marker/value", "there is the annotation `many`", cause=DenialCause.TOO_MANY)


class Marker(AdmissionPlugin):
    """Adds the label ``marked``; denies annotations ``bad``, one error a word, and ``many``; warns about ``odd``."""

    name = "marker"
    rules = (BAD, ODD, VALUE)

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        pod.set("yes", "metadata", "labels", "marked")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        annotations = pod["metadata"].get("annotations") or {}
        for word in annotations.get("bad", "").split(","):
            if word:
                yield FieldError(BAD, annotation_path("bad"), word, "must not be; remove it")
        if "many" in annotations:
            yield FieldError(VALUE, annotation_path("many"), annotations["many"], "must not be; remove it")
        if "odd" in annotations:
            yield FieldError(ODD, annotation_path("odd"), annotations["odd"], "is odd")
        if "crash" in annotations:
            raise RuntimeError("crash asked for")


def _unexpected(plugin: str, point: str, error: BaseException) -> None:
    """Fail the test: for those in which no plugin may raise."""
    raise AssertionError(f"plugin {plugin} failed in {point}") from error


def marking(on_error: OnPluginError = _unexpected, settings: Settings | None = None) -> AdmissionChain:
    """Return a chain with only ``Marker``."""
    settings = settings or Settings()
    return AdmissionChain([Marker(PluginConfig(), settings)], settings, "bowline-system", on_error)


def built_in(on_error: OnPluginError = _unexpected, settings: Settings | None = None) -> AdmissionChain:
    """Return the chain that the webhook has by default, or with other settings."""
    settings = settings or Settings()
    return AdmissionChain(Registry(BUILTINS).build(settings), settings, "bowline-system", on_error)
