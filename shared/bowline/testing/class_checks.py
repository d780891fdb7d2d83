"""Checks of a plugin's class and admission methods, without a cluster. Each yields a sentence per mistake."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from pydantic import ValidationError

from bowline.api.bindrequest import decode_bind_request
from bowline.api.field_error import FieldError
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.mutable import MutableObject, MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, Plugin
from bowline.framework.plugin_class import class_errors
from bowline.plugins.catalog import BUILTINS
from bowline.testing import builders
from bowline.testing.purity import recorded
from bowline.testing.subject import Subject

_REPETITIONS = 5


def can_be_loaded(subject: Subject) -> Iterator[str]:
    """Its class and its name are valid, and it can be created; the first of these that fails ends the check."""
    for check in (_has_a_valid_class, _has_a_name_of_its_own, _can_be_created):
        findings = list(check(subject))
        yield from findings
        if findings:
            return


def _has_a_valid_class(subject: Subject) -> Iterator[str]:
    """Every method is one that is called, with the right arguments."""
    name = getattr(subject.plugin, "name", "")
    for error in class_errors(subject.plugin, name, "plugin"):
        # The chart has the built-in plugins' rights and the policies that limit them.
        if error.rule.id != "plugin/access" or not subject.is_builtin:
            yield f"{error.value}: {error.message}"
    if subject.plugin.config_model.model_config.get("extra") != "forbid":
        yield "its arguments accept unknown keys; a misspelt one has no effect: leave `extra` as PluginConfig has it"


def _has_a_name_of_its_own(subject: Subject) -> Iterator[str]:
    """No built-in plugin has its name."""
    name = subject.plugin.name
    if any(builtin.plugin.name == name and builtin.plugin is not subject.plugin for builtin in BUILTINS):
        yield f"the name {name!r} is that of a built-in plugin, which is loaded instead"


def _can_be_created(subject: Subject) -> Iterator[str]:
    """The constructor accepts the arguments, and does no I/O."""
    try:
        with recorded() as events:
            subject.new()
    except BaseException as error:  # noqa: BLE001 - any error of the plugin is a finding
        hint = "; give its arguments: `args` of the suite, or --args" if isinstance(error, ValidationError) else ""
        yield f"cannot be created: {type(error).__name__}: {error}{hint}"
        return
    yield from (f"the constructor does I/O: {event}" for event in events)


def _is_deterministic(subject: Subject) -> Iterator[str]:
    """The same object gives the same result, again and from every instance."""
    for point, call in _calls(subject):
        plugin = subject.new()
        results = [call(instance)[0] for instance in (plugin, plugin, *(subject.new() for _ in range(_REPETITIONS)))]
        if any(result != results[0] for result in results):
            yield f"{point} gives different results for one object; derive generated values from info.request_uid"


def _is_idempotent(subject: Subject) -> Iterator[str]:
    """A mutation changes nothing in its own result: the API server may call the webhook again."""
    plugin = subject.new()
    for point in _points(subject, "mutate_"):
        for sample in _samples(subject, point):
            once, _ = _mutated(point, sample, plugin)
            if isinstance(once, dict) and _mutated(point, once, plugin)[0] != once:
                yield f"{point} changes its own result when it is called again"


def is_pure(subject: Subject) -> Iterator[str]:
    """Admission does no I/O, does not sleep, gives one result for one object, also for its own, records what it
    changes, and denies no update that changes nothing.
    """
    checks = (_does_no_io, _is_deterministic, _is_idempotent, _records_its_changes, _accepts_what_is_unchanged)
    yield from chain.from_iterable(check(subject) for check in checks)


def _does_no_io(subject: Subject) -> Iterator[str]:
    """Admission does no I/O, does not sleep, and validation leaves its arguments as they are."""
    findings = []
    for point, call in _calls(subject):
        plugin = subject.new()
        with recorded(subject.files) as events:
            _, changed = call(plugin)
        findings += [f"{point} does I/O or waits: {event}" for event in events]
        if changed:
            findings.append(f"{point} modifies the object that it validates")
    yield from dict.fromkeys(findings)


def _records_its_changes(subject: Subject) -> Iterator[str]:
    """A mutation changes the object through its methods: what it changes otherwise is not sent to the API server."""
    plugin = subject.new()
    for point in _points(subject, "mutate_"):
        for sample in _samples(subject, point):
            body = copy.deepcopy(sample)
            mutable = MutablePod(body) if _is_of_pods(point) else MutableObject(body)
            with suppress(BaseException):  # that is another check's finding
                _mutate(plugin, point, mutable, sample)
                mutable.revert((0, 0))
                if mutable.raw != sample:
                    yield f"{point} changes `raw` itself, which is lost; use set, set_annotation, append or remove"


def _accepts_what_is_unchanged(subject: Subject) -> Iterator[str]:
    """An update that changes nothing is not denied: a stored object that violates a later rule stays updatable."""
    plugin = subject.new()
    for point in _points(subject, "validate_"):
        for sample in _samples(subject, point):
            errors, _ = _validated(point, sample, copy.deepcopy(sample), plugin)
            denials = [error for error in errors if isinstance(error, FieldError) and not error.is_warning]
            if denials:
                yield f"{point} denies an update that changes nothing: {denials[0].message}; compare with `old`"


def returns_errors(subject: Subject) -> Iterator[str]:
    """Admission raises nothing, whatever labels, annotations and resources an object has or had, and returns
    FieldErrors; each pod of `denied` is denied by a rule of the plugin.
    """
    results = ((point, call(subject.new())[0]) for point, call in _calls(subject, _variants))
    yield from dict.fromkeys(f"{point} {result}" for point, result in results if isinstance(result, str))
    yield from _denies(subject)


def _denies(subject: Subject) -> Iterator[str]:
    """Each pod of `denied` is denied, by a rule of the plugin."""
    rules = getattr(subject.plugin, "rules", ())
    for pod in subject.denied:
        name = pod["metadata"]["name"]
        result, _ = _validated("validate_pod", pod, None, subject.new())
        if isinstance(result, str):
            yield f"validate_pod, pod {name}: {result}"
        elif not [error for error in result if not error.is_warning and error.rule in rules]:
            yield f"validate_pod does not deny pod {name} of `denied` by one of the plugin's rules"


def answers_for_every_pod(subject: Subject) -> Iterator[str]:
    """`applies` returns a bool for every pod, the same one for the same pod, and changes nothing."""
    plugins = [subject.new() for _ in range(_REPETITIONS)]
    findings: dict[str, str] = {}  # with the example of a pod
    for pod in [pod for sample in subject.samples() for pod in _variants(sample)]:
        request = decode_bind_request(builders.stored(_request_of(subject, pod)))
        example = f"for a pod with annotations {pod['metadata'].get('annotations')!r}"
        body = copy.deepcopy(pod)
        try:
            answers = [plugin.applies(body, request) for plugin in plugins if isinstance(plugin, BindingPlugin)]
        except BaseException as error:  # noqa: BLE001 - any error of the plugin is a finding
            text = f"applies raises {type(error).__name__}: {error}"
            findings.setdefault(text, f"{example}: every such pod would wait")
            continue
        strangers = [answer for answer in answers if not isinstance(answer, bool)]
        if strangers:
            findings.setdefault(f"applies returns {strangers[0]!r}", f"{example}; it must return True or False")
        if len(set(map(str, answers))) > 1:
            findings.setdefault("applies gives different answers", f"{example}; decide by the pod and the request")
        if body != pod:
            findings.setdefault("applies changes the pod", example)
    yield from (f"{text}, {example}" for text, example in findings.items())


# --- calls ---

Outcome = tuple[Any, bool]  # the comparable result or a text about its failure, and whether an argument was modified
CallOf = Callable[[Plugin], Outcome]
Variants = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]
# Values of labels and annotations that users write.
_TEXTS = ("", "-1", "x", "1e99")
_POINTS: Mapping[str, Callable[..., Any]] = {
    "mutate_pod": AdmissionPlugin.mutate_pod,
    "validate_pod": AdmissionPlugin.validate_pod,
    "mutate_ephemeral_containers": AdmissionPlugin.mutate_ephemeral_containers,
    "validate_ephemeral_containers": AdmissionPlugin.validate_ephemeral_containers,
    "mutate_bind_request": AdmissionPlugin.mutate_bind_request,
    "validate_bind_request": AdmissionPlugin.validate_bind_request,
}


def _info(point: str) -> AdmissionInfo:
    kind = "Pod" if _is_of_pods(point) else "BindRequest"
    return AdmissionInfo(namespace="default", kind=kind, request_uid="5f0c6d3a-0000-4000-8000-000000000000")


def _is_of_pods(point: str) -> bool:
    return not point.endswith("_bind_request")


def _samples(subject: Subject, point: str) -> Sequence[dict[str, Any]]:
    if _is_of_pods(point):
        return subject.samples()
    return [_request_of(subject, pod) for pod in subject.samples()]


def _request_of(subject: Subject, pod: dict[str, Any]) -> dict[str, Any]:
    fields = {"podUID": "uid-1", **subject.request_in("default")}
    return builders.bind_request(pod["metadata"]["name"], **fields)


def _variants(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the object, with another value of each label and annotation, without them, and without resources."""
    yield sample
    for field in ("labels", "annotations"):
        entries = sample["metadata"].get(field) or {}
        for key in entries:
            for text in _TEXTS:
                yield {**sample, "metadata": {**sample["metadata"], field: {**entries, key: text}}}
    yield _without_metadata(sample)
    if "containers" in (sample.get("spec") or {}):
        bare = [{"name": entry["name"], "image": entry["image"]} for entry in sample["spec"]["containers"]]
        yield _without_metadata({**sample, "spec": {**sample["spec"], "containers": bare}})


def _points(subject: Subject, prefix: str) -> list[str]:
    """Return the admission methods that the plugin overrides."""
    if not issubclass(subject.plugin, AdmissionPlugin):
        return []
    return [
        point
        for point, declared in _POINTS.items()
        if point.startswith(prefix) and getattr(subject.plugin, point) is not declared
    ]


def _calls(subject: Subject, variants: Variants = lambda sample: [sample]) -> Iterator[tuple[str, CallOf]]:
    """Yield every admission method that the plugin overrides, with each sample."""
    for point in _points(subject, ""):
        for sample in chain.from_iterable(map(variants, _samples(subject, point))):
            if point.startswith("mutate_"):
                yield point, partial(_mutated, point, sample)
            else:
                if not point.endswith("_containers"):  # those are added to a pod that exists
                    yield point, partial(_validated, point, sample, None)
                yield point, partial(_validated, point, sample, copy.deepcopy(sample))
                yield point, partial(_validated, point, sample, _without_metadata(sample))


def _without_metadata(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the object as it was before a user has added its labels and annotations."""
    metadata = {key: value for key, value in sample["metadata"].items() if key not in ("labels", "annotations")}
    return copy.deepcopy({**sample, "metadata": metadata})


def _mutated(point: str, raw: dict[str, Any], plugin: Plugin) -> Outcome:
    body = copy.deepcopy(raw)
    mutable = MutablePod(body) if _is_of_pods(point) else MutableObject(body)
    try:
        result = _mutate(plugin, point, mutable, raw)
    except BaseException as error:  # noqa: BLE001 - any error of the plugin is a finding
        return f"raises {type(error).__name__}: {error}", False
    return (f"must return None, not {result!r}", False) if result is not None else (body, False)


def _mutate(plugin: Plugin, point: str, mutable: MutableObject, raw: dict[str, Any]) -> Any:
    old = [copy.deepcopy(raw)] if point.endswith("_containers") else []
    return getattr(plugin, point)(mutable, *old, _info(point))


def _validated(point: str, raw: dict[str, Any], old: Any, plugin: Plugin) -> Outcome:
    body = copy.deepcopy(raw)
    try:
        errors = [*getattr(plugin, point)(body, old, _info(point))]
    except BaseException as error:  # noqa: BLE001 - any error of the plugin is a finding
        return f"raises {type(error).__name__}: {error}; it must return an iterable of FieldErrors", body != raw
    if strangers := [error for error in errors if not isinstance(error, FieldError)]:
        return f"returns {strangers[0]!r}; it must return FieldErrors", body != raw
    rules = getattr(plugin, "rules", ())
    foreign = [error.rule.id for error in errors if error.rule not in rules]
    return (f"returns an error of {foreign[0]}, which is none of its `rules`" if foreign else errors), body != raw
