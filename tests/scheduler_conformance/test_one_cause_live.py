"""`bowline explain` for three minutes of decisions that fail, with the example scheduler: no answer changes.

The pure states are in tests/unit/cli/test_one_cause.py.
"""

import json
import time
from typing import Any, Final

import pytest

from bowline.conformance.scheduler import SchedulerCluster, SchedulerStage
from bowline_cli.main import main
from tests.pairs import own_namespace
from tests.plugins.storage import Storage
from tests.scheduler_conformance.programs import Program
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.long

OBSERVED_S: Final = 180.0
# Pod to what its first line begins with; the namespace is filled in.
CAUSES: Final = {
    "no-claim": "PersistentVolumeClaim {0}/absent does not exist: create it [volume_binding]",
    "no-class": "StorageClass {0}-absent of PersistentVolumeClaim {0}/unclassed does not exist: create it",
    "no-volume": "the node can use no free PersistentVolume of class {0}-late with at least 1Gi and ReadWriteOnce",
    "no-driver": "the provisioner of StorageClass {0}-early was asked for a volume for ",
    "denied": 'pods "denied" is forbidden: ',
}


def answers(name: str, namespace: str, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["explain", f"pod/{name}", "-n", namespace, "--kubeconfig", kubeconfig, "-o", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_cause_time_and_remedy_do_not_change_while_the_cluster_does_not(
    binder: SchedulerCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        own_namespace(binder.cluster, binder.pair) as live,
        Program().running(binder.cluster) as scheduler,
        SchedulerStage(binder.cluster, binder.pair, scheduler, LIMIT_S, live.namespace).failing_binds(
            "denied", "a freeze"
        ),
    ):
        storage = Storage(live)
        storage.make_class()
        storage.make_class("csi.example.com", name="early")
        for claim, class_name in (("unclassed", "absent"), ("none", "late"), ("asked", "early")):
            storage.make_claim(claim, cls=class_name)
        claims = {"no-claim": "absent", "no-class": "unclassed", "no-volume": "none", "no-driver": "asked"}
        for pod, claim in claims.items():
            storage.make_pod(pod, claim)
        live.create_pod("denied")
        try:
            first, end = dict[str, dict[str, Any]](), 0.0
            while not end or time.monotonic() < end:
                for pod, cause in CAUSES.items():
                    answer = answers(pod, live.namespace, str(binder.cluster.kubeconfig), capsys)
                    if pod in first or answer["cause"].startswith(cause.format(live.namespace)):
                        key = ("cause", "since", "next")
                        expected = first.setdefault(pod, answer)
                        assert [answer[part] for part in key] == [expected[part] for part in key], (pod, answer)
                if not end and len(first) == len(CAUSES):
                    end = time.monotonic() + OBSERVED_S
                time.sleep(1)
        finally:
            storage.clean()
