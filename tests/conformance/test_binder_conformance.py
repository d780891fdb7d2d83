"""Binders as black boxes: Bowline's reconciler passes every case, wrong ones fail by the name of a case."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bowline.conformance.binder import Binder, BinderCluster, Situation
from bowline.conformance.case import Case
from bowline.conformance.cases import CASES
from bowline.conformance.report import run_case
from bowline.localcluster.kubeconfig import access_words

BINDERS = Path(__file__).parent / "binders"
ROOT = Path(__file__).parents[2]
CONFIG = """
apiVersion: config.bowline.dev/v1alpha1
kind: BowlineConfiguration
leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}
binding: {inFlightTimeout: 1s, backoff: {base: 100ms, max: 1s}}
gpuSharing: {fakeGPUs: true}
"""
LIMIT_S = 90.0
WRONG_LIMIT_S = 30.0
# Of what a wrong binder never does: it takes all of it. One that must act first may start on a busy machine.
IDLE_LIMIT_S = 15.0
IDLE = ("not within 15 s", "request pod is")


@pytest.fixture(scope="module")
def cluster() -> Iterator[BinderCluster]:
    """A cluster without a binder."""
    with BinderCluster.start(None, None) as started:
        yield started


def case(name: str) -> Case[Situation]:
    """The case of this name."""
    (selected,) = (entry for entry in CASES if entry.name == name)
    return selected


def reconciler(cluster: BinderCluster, folder: Path) -> Sequence[str]:
    """The command of Bowline's reconciler."""
    (folder / "config.yaml").write_text(CONFIG)
    listen = ("--metrics-listen=127.0.0.1:0", "--debug-listen=127.0.0.1:0", "--namespace=default")
    access = access_words(cluster.cluster.kubeconfig)
    return (sys.executable, "-m", "bowline_reconciler", f"--config={folder}/config.yaml", *access, *listen)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("selected", [pytest.param(entry, id=entry.name) for entry in CASES])
def test_the_reconciler_passes(cluster: BinderCluster, selected: Case[Situation], tmp_path: Path) -> None:
    result = run_case(selected, cluster, Binder(cluster, reconciler(cluster, tmp_path)), LIMIT_S)
    assert result.why == "", cluster.cluster.log_tails(15)


WRONG = [
    pytest.param("early", "rejected", "phase Succeeded of pod pod, which is on no node", id="reports first"),
    pytest.param("early", "rejected", "event Bound of pod pod, which is on no node", id="writes the event first"),
    pytest.param("early", "bound-elsewhere", "which is on node gpu-node-1", id="reports for another node"),
    pytest.param("leaky", "withdrawn", "reservation pods, ConfigMaps and labels are removed", id="releases nothing"),
    pytest.param("forgetful", "killed", "not within 15 s", id="forgets what it did not see"),
    pytest.param("ignores_the_limit", "backoff-limit", "request limited is Failed", id="ignores the limit"),
    pytest.param("fails_at_once", "backoff-limit", "attempts left has ended", id="fails at once"),
    pytest.param("revives_failed", "final-phases", "Failed of request failed has become", id="revives Failed"),
    pytest.param("reopens_succeeded", "final-phases", "Succeeded of request bound has become", id="reopens it"),
    pytest.param("newest_first", "two-requests", "the newer request was carried out", id="newest first"),
    pytest.param("exits_at_mig_instances", "mig-instance", "has ended with status 1", id="exits at a MIG instance"),
    pytest.param("takes_a_conflict_as_bound", "terminating", "of pod leaving, which is on no node", id="a conflict"),
    pytest.param("names_no_uid", "uid-in-binding", "does not name the pod's UID", id="no UID in the Binding"),
    pytest.param("takes_another_node", "binds", "the pod is on", id="another node"),
    pytest.param("takes_any_node", "absent-node", "request pod is Failed or deleted", id="no look at the node"),
    pytest.param("deletes_requests", "binds", "request pod is Succeeded", id="deletes the request"),
    pytest.param("never_reports", "binds", "request pod is Succeeded", id="never reports"),
    pytest.param(
        "serves_one_at_a_time", "terminating", "request pod is Succeeded", id="one stuck request blocks all"
    ),
    pytest.param("takes_a_conflict_as_failure", "bound-already", "request pod is Succeeded", id="bound is a failure"),
    pytest.param("binds_deleted_requests", "deleted-request", "that is being deleted", id="binds what is withdrawn"),
    pytest.param("removes_all_finalizers", "deleted-request", "another program was removed", id="all finalizers"),
    pytest.param("ignores_claims", "claims", "its claim is not allocated", id="ignores claims"),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("program", "failing", "why"), WRONG)
def test_a_wrong_binder_fails_by_name(cluster: BinderCluster, program: str, failing: str, why: str) -> None:
    path = BINDERS / f"{program}.py"
    command = [str(path)] if path.exists() else [str(BINDERS / "mistakes.py"), program]
    binder = Binder(cluster, (sys.executable, *command))
    result = run_case(case(failing), cluster, binder, IDLE_LIMIT_S if why.startswith(IDLE) else WRONG_LIMIT_S)
    assert why in result.why
    assert result.line.startswith(f"FAIL {failing} ")


@pytest.mark.timeout(200)
def test_the_command_states_which_case_failed() -> None:
    command = [sys.executable, "-m", "bowline.conformance", "--binder", "sh -c 'exit 3'", "--case", "binds"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert result.stdout.splitlines()[-1] == "0 passed, 1 failed: binds"
    assert "the binder has ended with status 3" in result.stdout
    assert shlex.split(command[4]) == ["sh", "-c", "exit 3"]
