"""The agent's loop: read the device, write the annotation, repeat.

Device and annotation are compared at start and every ``PERIOD``: a restarted kubelet may have assigned another device
to the container, and another client may have changed or removed the annotation. It is written only if it differs. API
failures are retried. A device that cannot be read ends the process: the kubelet restarts it, and its last log lines
are in the pod's status, where the reconciler reads them.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, uid_of
from bowline.framework.options import add_api_server, api_server, argument_type
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ApiError, CredentialsError, InfrastructureError, NotStoredError
from bowline.kube.resources import PODS
from bowline.plugins.gpu_sharing.agent.device import DeviceError, read_device
from bowline.runtime.address import ListenAddress, parse_listen
from bowline.runtime.backoff import Backoff
from bowline.runtime.logging import configure_logging
from bowline.runtime.metrics import new_registry
from bowline.runtime.probes import ProbeServer
from bowline.runtime.tasks import ShutdownSignal, run_process, wait_until

log = logging.getLogger(__name__)

PROGRAM = "gpu-sharing-agent"
# Well below the default ``gpuSharing.agentTimeout``: for longer no request waits for a device.
PERIOD = timedelta(seconds=15)
# From the API server's cache, for the sake of etcd: what it does not have yet is seen a period later.
_CACHED = {"resourceVersion": "0"}
# Minimum delay after an API failure.
SOON = timedelta(seconds=0.2)


@dataclass(frozen=True, slots=True)
class Options:
    """The agent's configuration."""

    pod: ObjectKey
    fake: bool  # report a device that does not exist
    listen: ListenAddress
    api_server: ApiServer | None
    period: timedelta = PERIOD


def parse_options(arguments: list[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the command line; exits with 2 if it, or the environment, is incomplete."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Writes the reserved GPU into its pod's annotation.")
    parser.add_argument("--fake", action="store_true", help="report a fake device, for clusters without GPUs")
    parser.add_argument(
        "--listen",
        type=argument_type(parse_listen),
        metavar="HOST:PORT",
        default=parse_listen(":8080"),
        help="where /healthz and /readyz are served over plain HTTP (%(default)s)",
    )
    add_api_server(parser)
    flags = parser.parse_args(arguments)
    missing = [name for name in ("POD_NAMESPACE", "POD_NAME") if not environment.get(name)]
    if missing:
        parser.error(f"environment: {', '.join(missing)} must be set; a pod gets it by fieldRef")
    return Options(
        ObjectKey(environment["POD_NAMESPACE"], environment["POD_NAME"]),
        flags.fake,
        flags.listen,
        api_server(flags),
    )


def main() -> None:
    """Run the process; exits with 1 and a message if the device cannot be read."""
    options = parse_options()
    configure_logging("json", "info")
    try:
        run_process(lambda stop: Agent(options, read_device).run(stop))
    except (DeviceError, CredentialsError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        sys.exit(1)


class Agent:
    """One agent. ``read`` returns the UUID of the visible device."""

    def __init__(self, options: Options, read: Callable[[], str]) -> None:
        self._options = options
        self._read = read
        self._missing: str | None = "the device is not reported yet"

    async def run(self, stop: ShutdownSignal) -> None:
        """Run until ``stop``. Raises DeviceError if the device cannot be read."""
        probes = ProbeServer(self._options.listen, new_registry(), {"device": lambda: self._missing}, "agent")
        await probes.start()
        try:
            async with KubeClient(load_access(self._options.api_server), ClientOptions(name=PROGRAM)) as client:
                await self._watch_device(client, stop)
        finally:
            await probes.stop()

    async def _watch_device(self, client: KubeClient, stop: ShutdownSignal) -> None:
        backoff = Backoff(timedelta(seconds=0.5), timedelta(seconds=15))
        while not stop.is_set():
            try:
                await self._report(client)
            except (InfrastructureError, ApiError, NotStoredError) as error:
                self._missing = f"the device cannot be reported: {error}"
                retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
                pause = backoff.next_delay(max(retry_after or SOON, SOON))
                log.warning("the device cannot be reported", extra={"error": str(error)})
            else:
                self._missing = None
                backoff.reset()
                pause = self._options.period
            await wait_until(stop, pause)

    async def _report(self, client: KubeClient) -> None:
        """Read the device and write it to the pod's annotation if that differs."""
        device = "" if self._options.fake else await asyncio.to_thread(self._read)
        key = self._options.pod
        pod = await client.get(PODS, key.namespace, key.name, params=_CACHED)
        device = device or f"GPU-{uid_of(pod)}"
        body = report_of(pod, device)
        if body is None:
            return
        await client.patch(PODS, key.namespace, key.name, body, essential=body)
        if before := device_of(pod):
            log.error("the annotation named another device; pods that share it keep it", extra={"before": before})
        log.info("device reported", extra={"device": device})


def device_of(pod: Object) -> str:
    """Return the device that the pod's annotation names; empty if it names none."""
    return str((pod["metadata"].get("annotations") or {}).get(names.RESERVED_DEVICE) or "")


def report_of(pod: Object, device: str) -> dict[str, Any] | None:
    """Return the patch that reports the device, whatever another client has written; None if it is reported."""
    if device_of(pod) == device:
        return None
    # By UID: another pod of the same name has an agent of its own.
    return {"metadata": {"uid": uid_of(pod), "annotations": {names.RESERVED_DEVICE: device}}}
