"""The short form of ``make test-availability``: the order of events, a few seconds each, on any machine.

The complete form, at 100 pods a second and with the CA's lifetimes in real time, is ``python -m tests.availability``.
"""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from tests.availability.rig import TIMED_OUT, rig_on
from tests.availability.scenarios import play, roll_replicas, secret_emptied

RATE = 25.0
# A CA with the lifetime of the test: introduced and used while the Secret is emptied, removed afterwards. A serving
# certificate is renewed 10 s before it expires, and a new CA is published 5 s before it signs: a loaded machine needs
# time for both.
LIFETIMES = "30,3600,5"
# The default. In its last quarter each response closes its connection; on a loaded machine requests take seconds.
DRAIN = "--drain=30s"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        yield cluster


async def test_neither_a_new_authority_nor_a_rollout_loses_a_call(cluster: Cluster) -> None:
    async with rig_on(cluster) as rig:
        rig.lifetimes, rig.drain = LIFETIMES, DRAIN
        await rig.scale(2)
        emptied_outcome = await play(rig, "the Secret emptied", secret_emptied, RATE)
        rolled_over = await play(rig, "all rolled", roll_replicas, RATE)
    assert emptied_outcome.switches >= 1, "the CA was replaced meanwhile"
    assert emptied_outcome.renewals >= 2
    for outcome in (emptied_outcome, rolled_over):
        assert outcome.pods > RATE
        assert outcome.handshakes > 0
        assert outcome.refusals == ()
        # Calls that time out are a slow machine's; the long form, on an idle one, allows none of them either.
        assert set(outcome.lost_calls) == set(outcome.timed_out)
        assert [why for why in outcome.reasons if TIMED_OUT not in why] == []
