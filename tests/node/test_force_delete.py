"""A container that ignores SIGTERM: after a normal deletion its device stays reserved, after ``--force`` it does not.

A forced deletion removes the pod's object. The kubelet ends the container within the pod's grace period, and no
object shows when. Decision 169.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.steps import NodeLive

_PROGRAM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)  # {}"


def container_pids(program: str) -> list[int]:
    """Return the processes whose command line contains a program."""
    pids = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program.encode() in command.read_bytes():
                pids.append(int(command.parent.name))
        except OSError:
            continue
    return pids


@pytest.fixture
def program(live: NodeLive) -> Iterator[str]:
    """The program of a running pod ``sharer``, which shares a device as the only pod of its group."""
    program = _PROGRAM.format(live.namespace)
    live.run_pod("sharer", {"gpu-fraction": "0.5"}, program=program, terminationGracePeriodSeconds=600)
    live.bind_share("sharer", "0.50", f"group-{live.namespace}")
    live.running("sharer")
    live.until("the program runs", lambda: container_pids(program) or None)
    yield program
    for pid in container_pids(program):
        os.kill(pid, signal.SIGKILL)


def test_a_terminating_pod_keeps_its_device_until_its_container_has_ended(live: NodeLive, program: str) -> None:
    live.kubectl("delete", "pod", "sharer", "--wait=false")
    # Its bind releases what no pod uses.
    live.run_pod("whole", limits={"nvidia.com/gpu": "1"})
    live.bind("whole", receivedGPU={"count": 1, "portion": "1.00"})
    live.running("whole")
    assert container_pids(program)
    assert f"group-{live.namespace}" in live.reservations()
    for pid in container_pids(program):
        os.kill(pid, signal.SIGKILL)
    live.until("the device is released", lambda: f"group-{live.namespace}" not in live.reservations())


def test_a_pod_deleted_with_force_loses_its_device_before_its_container_has_ended(
    live: NodeLive, program: str
) -> None:
    live.kubectl("delete", "pod", "sharer", "--force", "--grace-period=0")
    assert live.not_found(f"/api/v1/namespaces/{live.namespace}/pods/sharer")
    live.until("the device is released", lambda: f"group-{live.namespace}" not in live.reservations())
    assert container_pids(program), "the container ended first: the device was not released early"
