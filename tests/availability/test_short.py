"""The short form of ``make test-availability``: the order of events, a few seconds each, on any machine.

The complete form, at 100 pods a second and with the CA's lifetimes in real time, is ``python -m tests.availability``.
"""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from tests.availability.rig import REPAIRS, TIMED_OUT, rig_on
from tests.availability.scenarios import one_rotation, play, secret_emptied

RATE = 25.0
# A serving certificate is renewed 10 s before it expires, and a new CA is published 5 s before it signs: a loaded
# machine needs time for both.
LIFETIMES = "30,3600,5"
# When the CA that the replicas start with is replaced.
ROTATION = timedelta(seconds=15)
# The default. In its last quarter each response closes its connection; on a loaded machine requests take seconds.
DRAIN = "--drain=30s"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        yield cluster


async def test_neither_a_rotation_nor_a_rollout_with_a_broken_secret_loses_a_call(cluster: Cluster) -> None:
    async with rig_on(cluster) as rig:
        rig.lifetimes, rig.drain = LIFETIMES, DRAIN
        rig.set_ca(ROTATION)
        await rig.scale(2)
        rotated = await play(rig, "the CA rotated", one_rotation, RATE)
        repairs = rig.total(REPAIRS)
        rolled_over = await play(rig, "the Secret emptied, all rolled", secret_emptied, RATE)
        assert (repairs, rig.total(REPAIRS)) == (0, 1), "one of the replicas that start makes a new CA"
    assert rotated.switches == 1
    assert rotated.renewals >= 2
    for outcome in (rotated, rolled_over):
        assert outcome.pods > RATE
        assert outcome.handshakes > 0
        assert outcome.refusals == ()
        # Calls that time out are a slow machine's; the long form, on an idle one, allows none of them either.
        assert set(outcome.lost_calls) == set(outcome.timed_out)
        assert [why for why in outcome.reasons if TIMED_OUT not in why] == []
