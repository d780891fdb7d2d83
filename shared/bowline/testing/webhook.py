"""The product's webhook for the pods and BindRequests of trials: the lab's API server calls it, as a cluster's does.

Each chain of plugins has a listener of its own, and the chart's webhook configurations for namespaces with its label.
They differ from the chart's in what a lab needs: the CA is the lab's, and a lost call fails the request, which would
pass unreviewed else. All listeners run in one thread, so that nothing of them is a task of a trial.
"""

import asyncio
import base64
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from prometheus_client import CollectorRegistry

from bowline.api.meta import Object
from bowline.framework.access import hooks_of
from bowline.framework.admission import AdmissionChain, Verdict
from bowline.framework.config import Settings
from bowline.framework.plugin import AdmissionInfo, AdmissionPlugin, Plugin
from bowline.localcluster.certs import LocalAuthority, write_pair
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError, StartError
from bowline.plugins.reads import unread_annotations
from bowline.runtime.address import ListenAddress
from bowline.testing.account import chart_values, collection_of, rendered
from bowline.testing.subject import Subject
from bowline_webhook.hooks import Hook
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer

_LABEL: Final = "bowline.dev/lab"
# UID of every review: values that plugins generate from it are equal in all trials.
_REVIEW: Final = "5f0c6d3a-0000-4000-8000-000000000000"
_HOST = "127.0.0.1"
_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
# The longest that the API server accepts.
_CALL_S = 30
_POLL_S = 0.02
_LIMIT_S = 60.0
_END_S = 30.0


class _LabChain(AdmissionChain):
    """A chain whose reviews all have one UID."""

    def admit_pod(self, raw: dict[str, Any], info: AdmissionInfo) -> Verdict:
        return super().admit_pod(raw, replace(info, request_uid=_REVIEW))

    def admit_bind_request(self, raw: dict[str, Any], info: AdmissionInfo, old: Object | None = None) -> Verdict:
        return super().admit_bind_request(raw, replace(info, request_uid=_REVIEW), old)


@dataclass(frozen=True, slots=True)
class _Listener:
    """A server, and the metrics by which it is seen that the API server calls it."""

    server: AdmissionServer
    registry: CollectorRegistry

    @property
    def port(self) -> int:
        return self.server.address.port

    def is_called(self, hook: Hook) -> bool:
        labels = [{"hook": hook.value, "allowed": allowed} for allowed in ("true", "false")]
        return any(self.registry.get_sample_value("bowline_admission_requests_total", each) for each in labels)


class LabWebhook:
    """The webhooks of a lab within ``with``; for one caller at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._authority = LocalAuthority("lab-webhook-ca")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab webhook", daemon=True)
        self._listeners: dict[str, _Listener] = {}
        self._paths: list[str] = []

    def __enter__(self) -> "LabWebhook":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._paths:
            with suppress(LocalApiError, ConnectionError):
                self._cluster.api.delete(path)
        for listener in self._listeners.values():
            asyncio.run_coroutine_threadsafe(listener.server.stop(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()

    def make_namespace(self, name: str, subject: Subject) -> None:
        """Create a namespace in which the subject's chain reviews pods and BindRequests, as soon as it does."""
        plugins = subject.chain()[1]
        if not any(_reviews(plugin) for plugin in plugins):
            self._cluster.make_namespace(name)
            return
        key = repr((subject.plugin, json.dumps(subject.args, default=repr), subject.others))
        is_new = key not in self._listeners
        if is_new:
            self._listeners[key] = self._serve(plugins)
        listener = self._listeners[key]
        labels = {_LABEL: str(listener.port)}
        self._cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        if is_new:
            self._wait_called(listener, name, subject)

    def _serve(self, plugins: Sequence[Plugin]) -> _Listener:
        """Start a listener, and register it at the API server."""
        registry = CollectorRegistry()
        metrics = WebhookMetrics(registry, [plugin.name for plugin in plugins])
        chain = _LabChain(plugins, Settings(), unread=unread_annotations(plugins))
        server = AdmissionServer(ListenAddress(_HOST, 0), self._context(), chain, metrics)
        asyncio.run_coroutine_threadsafe(server.start(), self._loop).result(_END_S)
        listener = _Listener(server, registry)
        values = {
            **chart_values(plugins),
            "webhook.url": f"https://{server.address}",
            "webhook.namespaceSelector.matchLabels": {_LABEL: str(listener.port)},
        }
        for body in rendered(f"lab-{listener.port}", values):
            if body["kind"] in _KINDS:
                self._register(body)
        return listener

    def _register(self, body: dict[str, Any]) -> None:
        for hook in body["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(self._authority.pem).decode()
            hook["failurePolicy"], hook["timeoutSeconds"] = "Fail", _CALL_S
        collection = collection_of(body)
        self._cluster.api.post(collection, body)
        self._paths.append(f"{collection}/{body['metadata']['name']}")

    def _wait_called(self, listener: _Listener, namespace: str, subject: Subject) -> None:
        """Return when the API server calls both configurations, or denies the pod after the first."""
        sample = subject.samples()[0]
        spec = {**sample["spec"], "schedulerName": Settings().scheduler_names[0]}
        metadata = {**sample["metadata"], "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", **sample, "metadata": metadata, "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        deadline, denial = time.monotonic() + _LIMIT_S, ""
        while time.monotonic() < deadline:
            denial = ""
            try:
                self._cluster.api.post(path, pod)
            except LocalApiError as error:
                denial = str(error)
            if listener.is_called(Hook.MUTATE_PODS) and (denial or listener.is_called(Hook.VALIDATE_PODS)):
                return
            time.sleep(_POLL_S)
        raise StartError(f"the API server has not called the lab's webhook after {_LIMIT_S:.0f} s: {denial}")

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # ssl loads a certificate and its key only from files.
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*write_pair(Path(folder), "webhook", self._authority.server(("localhost",))))
        return context


def _reviews(plugin: Plugin) -> bool:
    """Return whether the webhook calls the plugin."""
    return bool(hooks_of(type(plugin), AdmissionPlugin)) or (
        type(plugin).has_side_effects is not Plugin.has_side_effects
    )
