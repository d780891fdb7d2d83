"""The webhook in the loop: its preparations at creation, complete or not, do not change how a request ends.

A share of a GPU needs most of them: the container's environment, the names of its ConfigMaps and the runtime class in
the pod; UID and finalizer in the request. The pod must be admitted, so the webhook is killed later; its hooks for
requests fail open (failurePolicy Ignore), and the reconciler does the rest.
"""

from collections.abc import Iterator

import pytest

from bowline.api import names
from bowline.localcluster.workload import LocalProcess
from tests.faults.endstate import leftovers
from tests.faults.lab import PLUGINS_CONFIG, Lab, open_lab
from tests.faults.matrix import Matrix
from tests.faults.plugin_scenarios import ask_for_share, make_share, post_share, share_body
from tests.faults.scenarios import Scenario, in_phase
from tests.faults.test_crashes import KILLS
from tests.faults.truth import TruthObserver
from tests.live import LiveCluster


@pytest.fixture(scope="module")
def admitting_lab() -> Iterator[Lab]:
    """A cluster where the webhook runs and its configurations exist."""
    with open_lab(PLUGINS_CONFIG, webhook=True) as lab:
        yield lab


@pytest.fixture
def truth(admitting_lab: Lab) -> Iterator[TruthObserver]:
    """Fails the test at the first false claim."""
    with TruthObserver(admitting_lab.cluster, leftovers) as observer:
        yield observer


@pytest.fixture
def webhook(admitting_lab: Lab) -> LocalProcess:
    """The webhook, running: an earlier test may have killed it."""
    return admitting_lab.webhook()


def _make_admitted_share(live: LiveCluster) -> None:
    make_share(live, "a", admitted=True)
    request, pod = live.request(), live.pod()
    assert request["metadata"].get("finalizers") == [names.FINALIZER] or "nodeName" in pod["spec"]
    assert request["spec"]["podUID"] == pod["metadata"]["uid"]
    assert pod["spec"]["runtimeClassName"] == "nvidia"


ADMITTED = Scenario("admitted", _make_admitted_share, in_phase("Succeeded"), "Bound")


def killing(webhook: LocalProcess, *, before_request: bool) -> Scenario:
    """The same scenario, with the webhook killed between its pod and its request, or after both."""

    def play(live: LiveCluster) -> None:
        uid = post_share(live, share_body(live), admitted=True)
        if before_request:
            webhook.kill()
        ask_for_share(live, uid, "a")
        webhook.kill()

    return Scenario("webhook-killed", play, in_phase("Succeeded"), "Bound")


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_every_point_of_a_request_that_was_admitted(
    admitting_lab: Lab, truth: TruthObserver, webhook: LocalProcess
) -> None:
    with admitting_lab.reconciler("crashing") as reconciler:
        matrix = Matrix(admitting_lab, truth, reconciler)
        matrix.sweep(ADMITTED, KILLS)
        matrix.conclude()


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("before_request", [True, False], ids=["between pod and request", "after the request"])
def test_a_killed_webhook_changes_no_end_state(
    admitting_lab: Lab, truth: TruthObserver, webhook: LocalProcess, before_request: bool
) -> None:
    with admitting_lab.reconciler("crashing") as reconciler:
        matrix = Matrix(admitting_lab, truth, reconciler)
        end = matrix.sweep(ADMITTED, [])
        assert matrix.sweep(killing(webhook, before_request=before_request), []) == end
        matrix.verify()
        matrix.dissolve()
