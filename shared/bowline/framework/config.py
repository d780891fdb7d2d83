"""The configuration of both processes: one YAML document, ``config.bowline.dev/v1alpha1``.

``Settings`` is the validated, frozen form with all defaults. All errors of a document are collected before any is
reported, each with its path; a process does not start with any of them. A plugin's ``args`` are validated by the
Registry, which knows the plugins.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, ValidationError

from bowline.api.duration import format_duration, parse_duration
from bowline.api.field_error import FieldError
from bowline.api.names import CONFIG_API_VERSION, CONFIG_KIND
from bowline.api.quantity import parse_quantity
from bowline.api.rule import DenialCause, Rule
from bowline.api.schema import ConfigModel, schema_errors
from bowline.framework.strict_yaml import StrictLoader
from bowline.framework.workloads import WorkloadEntry, resolve_workloads

SCHEMA: Final = Rule("config/schema", "a setting is unknown, missing, of another type or out of its range")
_YAML: Final = Rule("config/yaml", "the configuration is not one YAML document")
_FILE: Final = Rule("config/file", "the file of the configuration cannot be read", cause=DenialCause.NOT_FOUND)
RULES: Final = (SCHEMA, _YAML, _FILE)
# Never in scope, whatever the configuration: a webhook in their path can lock a cluster out of itself.
SYSTEM_NAMESPACES = ("kube-system",)
# Where Kubernetes' own objects are. The chart's policies deny the reconciler to write pods there.
CLUSTER_NAMESPACES = (*SYSTEM_NAMESPACES, "kube-public", "kube-node-lease")


def _duration(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else parse_duration(value)


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
]
PositiveDuration = Annotated[Duration, Field(gt=timedelta(0))]


class ConfigurationError(Exception):
    """The configuration is invalid; ``errors`` lists all errors."""

    def __init__(self, errors: list[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(f"  - {error}" for error in errors))


class Namespaces(ConfigModel):
    """Namespaces that Bowline ignores."""

    exclude: tuple[str, ...] = ()
    """Besides kube-system and Bowline's own, which always are."""


AdmissionMode = Literal["Enforce", "Warn", "Off"]


def _mode(value: Any) -> Any:
    """Return the mode: YAML 1.1 reads an unquoted Off as false."""
    return "Off" if value is False else value


class Admission(ConfigModel):
    """What an admission verdict leads to."""

    mode: Annotated[AdmissionMode, BeforeValidator(_mode)] = "Enforce"
    """Enforce denies what breaks a rule. Warn reviews, counts and warns, but never denies. Off neither reviews nor
    mutates."""
    repeat_backoff: Duration = timedelta(seconds=60)
    """The longest time for which a BindRequest that repeats a failed decision is denied; 0s never denies one."""


def _written(value: Any) -> Any:
    """Return a quantity as text: YAML reads 0 as a number."""
    return str(value) if type(value) is int else value


def _valid_amount(text: str) -> str:
    try:
        is_amount = 0 <= parse_quantity(text) < _MAX_BYTES
    except ValueError:
        is_amount = False
    if not is_amount:
        raise ValueError("must be a quantity of memory, such as 1Gi or 512Mi, or 0")
    return text


_MAX_BYTES = 2**63
_BYTES_PER_MIB = 2**20
MemoryAmount = Annotated[str, BeforeValidator(_written), AfterValidator(_valid_amount)]

# Whether a cluster has a property; Auto finds out.
Detected = Literal["Auto", True, False]


class GpuSharingSettings(ConfigModel):
    """Shares of GPUs: the annotations gpu-fraction and gpu-memory."""

    enabled: bool = True
    """Off: a pod that requests a share is denied at admission; shares that run keep their devices and guards."""
    runtime_class_name: str = "nvidia"
    """Given to sharing pods that name none; empty gives none."""
    reservation_namespace: Annotated[str, Field(min_length=1)] = "kai-resource-reservation"
    """Where the pods live that hold shared devices. Change it only while there are none: those elsewhere are not
    read."""
    agent_image: Annotated[str, Field(min_length=1)] = "bowline"
    """Image of those pods, with the agent in it; the chart puts its own here."""
    agent_timeout: PositiveDuration = timedelta(seconds=40)
    """How long a request waits for a reservation pod to report its device; then that pod is deleted."""
    nv_fractions: Detected = False
    """NVIDIA's GPU fractioning enforces shares (plugin nv_fractions). Auto: on nodes that report the condition
    gpu-fractioning.nvidia.com/Ready."""
    reserved_memory: MemoryAmount = "1Gi"
    """Memory of each device that its driver keeps: a part of a device is a part of the rest. 0 reserves nothing."""

    @property
    def reserved_mebibytes(self) -> int:
        """``reserved_memory`` in MiB, rounded down."""
        return int(parse_quantity(self.reserved_memory) // _BYTES_PER_MIB)


class BackoffSettings(ConfigModel):
    """Delay between failed attempts: exponential with full jitter."""

    base: PositiveDuration = timedelta(seconds=1)
    """Upper bound of the first wait."""
    max: PositiveDuration = timedelta(seconds=60)
    """Upper bound of every wait."""


class Binding(ConfigModel):
    """How requests are bound."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 6
    """Retries of a BindRequest that sets no backoffLimit, for failures that a retry on the same node can resolve."""
    backoff: BackoffSettings = BackoffSettings.model_construct()
    in_flight_timeout: PositiveDuration = timedelta(seconds=60)
    """How long a write without an answer may still take effect: --request-timeout of the API servers."""
    wait_timeout: PositiveDuration = timedelta(seconds=600)
    """How long one wait for an object may last; a slow volume provisioner takes minutes. A plugin may set its own."""
    node_health_grace: Duration = timedelta(seconds=30)
    """How long a node may be not ready or unreachable before its BindRequests fail: a kubelet that restarts is both.
    A cordon and other taints end them at once."""
    ttl_after_succeeded: Duration = timedelta(hours=1)
    """When a Succeeded BindRequest is deleted, or a Failed one without an owner. 0s: with its pod only."""
    workers: Annotated[int, Field(ge=1, le=1024)] = 64
    """Attempts at the same time. The API server, not this, is the limit; more only queue there."""


class LeaderElection(ConfigModel):
    """Leader election among reconcilers. The rule is leaseDuration > renewDeadline > retryPeriod."""

    lease_duration: PositiveDuration = timedelta(seconds=15)
    """A standby leads this long after the leader's last renewal."""
    renew_deadline: PositiveDuration = timedelta(seconds=10)
    """A leader that could not renew for this long stops leading."""
    retry_period: PositiveDuration = timedelta(seconds=2)
    """Time between renewals."""


class PluginEntry(ConfigModel):
    """One plugin's switch and arguments; merged by name with the built-in defaults."""

    name: Annotated[str, Field(min_length=1)]
    """The plugin's name; of one that is not built in, its entry point's."""
    enabled: bool = True
    """Off: no method of the plugin is called."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the plugin, as its own page lists them."""


def _without_slash(url: str) -> str:
    return url.rstrip("/")


PageAddress = Annotated[str, AfterValidator(_without_slash), Field(pattern=r"^(https?://\S+)?$")]


class FeatureGates(ConfigModel):
    """Switches of alpha and beta behaviour, which may still change."""

    gang_binding: bool = Field(default=False, alias="GangBinding")
    """Alpha: the pods of a PodGroup are bound only when as many as it requires are prepared or bound."""


class Settings(ConfigModel):
    """The whole configuration."""

    api_version: Literal["config.bowline.dev/v1alpha1"] = "config.bowline.dev/v1alpha1"
    kind: Literal["BowlineConfiguration"] = "BowlineConfiguration"
    scheduler_names: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = (
        "kai-scheduler",
        "example-scheduler",
    )
    """Scheduler names whose pods Bowline handles; "*" means all."""
    docs_url: PageAddress = Field(default="", alias="docsURL")
    """Where this documentation is published, such as https://docs.example.com/bowline/docs. Denials then have
    the address of their rule, alerts and ``bowline explain`` that of their section. Empty: none has one."""
    namespaces: Namespaces = Namespaces.model_construct()
    admission: Admission = Admission.model_construct()
    gpu_sharing: GpuSharingSettings = GpuSharingSettings.model_construct()
    gpu_device_classes: tuple[str, ...] = ()
    """DRA device classes known to be GPUs; a share beside a claim of one is denied, beside others warned about."""
    workloads: tuple[WorkloadEntry, ...] = ()
    """Kinds whose pod templates are reviewed, in addition to the built-in ones."""
    binding: Binding = Binding.model_construct()
    leader_election: LeaderElection = LeaderElection.model_construct()
    plugins: tuple[PluginEntry, ...] = ()
    """Plugins to enable, to disable or to give arguments; merged by name with the built-in defaults."""
    granted_plugins: tuple[str, ...] | None = None
    """Plugins from elsewhere whose access the release grants; the chart writes it. Empty: it grants none."""
    plugin_order: tuple[str, ...] = ()
    """Names of all enabled plugins in the order wanted; empty keeps the built-in order."""
    feature_gates: FeatureGates = FeatureGates.model_construct()

    def schedules(self, scheduler_name: str) -> bool:
        """Return whether pods of that scheduler are in scope."""
        return "*" in self.scheduler_names or scheduler_name in self.scheduler_names

    @property
    def nv_fractions(self) -> Detected:
        """Whether plugin nv_fractions is enabled: by ``gpuSharing.nvFractions``, or by its entry, for every node.

        An entry that disables it precedes the setting.
        """
        is_listed = {entry.name: entry.enabled for entry in self.plugins}.get("nv_fractions")
        mode = self.gpu_sharing.nv_fractions
        return (is_listed and mode) or bool(is_listed) if is_listed is not None else mode


def parse_settings(text: str) -> Settings:
    """Parse one YAML document; an empty one gives the defaults. Raises ConfigurationError with all errors."""
    try:
        document = yaml.load(text, StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # PyYAML does not convert Python's own ValueError for a malformed number, such as 0x_.
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError([FieldError(_YAML, "", None, f"not a YAML document: {why}")]) from error
    if document is None:
        return Settings()
    if not isinstance(document, dict):
        raise ConfigurationError([FieldError(SCHEMA, "", document, "the document must be a mapping")])
    errors = [
        FieldError(SCHEMA, key, None, f"is required and must be {word}")
        for key, word in (("apiVersion", CONFIG_API_VERSION), ("kind", CONFIG_KIND))
        if key not in document
    ]
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        errors += schema_errors(SCHEMA, "", error.errors())
        raise ConfigurationError(errors) from error
    errors += cross_errors(settings)
    if errors:
        raise ConfigurationError(errors)
    return settings


def load_settings(path: Path | None) -> Settings:
    """Read the configuration file, or the defaults without one. Raises ConfigurationError, also for an unreadable
    file.
    """
    if path is None:
        return Settings.model_construct()
    try:
        return parse_settings(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError([FieldError(_FILE, "", None, f"{path}: {why}")]) from error


def cross_errors(settings: Settings) -> list[FieldError]:
    """Return the errors of combinations of keys."""
    errors = []
    election = settings.leader_election
    if not election.lease_duration > election.renew_deadline > election.retry_period:
        durations = "/".join(
            format_duration(d) for d in (election.lease_duration, election.renew_deadline, election.retry_period)
        )
        rule = "leaseDuration must be longer than renewDeadline, and that longer than retryPeriod"
        errors.append(FieldError(SCHEMA, "leaderElection", durations, rule))
    if settings.binding.backoff.max < settings.binding.backoff.base:
        value = format_duration(settings.binding.backoff.max)
        errors.append(
            FieldError(SCHEMA, "binding.backoff.max", value, "must not be shorter than binding.backoff.base")
        )
    return errors + resolve_workloads(settings.workloads)[1]
