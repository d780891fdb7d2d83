"""The rotation of the CA: each step as a row, its writes, and complete lifecycles without a cluster.

Fault 26 of the field is here as far as it is a decision; the rest is in tests/webhook and tests/availability.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from cryptography import x509

from bowline_webhook.tls.ca import BACKDATED, Authority, Leaf, is_valid_at, sign_leaf
from bowline_webhook.tls.rotation import (
    JITTER,
    MAX_BUNDLE,
    RENEW_AT,
    Action,
    CaObservation,
    CaState,
    CertLifetimes,
    after,
    leaf_due,
    rotate,
    stale_leaf_due,
)
from tests.unit.webhook.tls import DAY, NOW, YEAR, authority, leaf_of

LIVES = CertLifetimes(leaf=7 * DAY, authority=YEAR, grace=timedelta(seconds=30))
YOUNG, NEXT, FORMER, STRANGER = authority(NOW - DAY), authority(NOW - DAY), authority(NOW - YEAR / 2), authority(NOW)
DUE = authority(NOW - YEAR * RENEW_AT)
NEARLY = authority(NOW - YEAR * RENEW_AT + timedelta(minutes=1))
ENDED = authority(NOW - YEAR)
UNBORN = authority(NOW + 2 * BACKDATED)
HOUR = timedelta(hours=1)
ENOUGH, TOO_SHORT = LIVES.grace, LIVES.grace - timedelta(seconds=1)


def state(
    active: Authority | None, upcoming: Authority | None = None, *former: Authority, at: datetime | None = NOW
) -> CaState:
    signers = [signer.certificate for signer in (active, upcoming, *former) if signer is not None]
    return CaState(active, upcoming, tuple(signers), at)


ROWS = [
    pytest.param(CaObservation(None), Action.CREATE, id="there is no Secret"),
    pytest.param(CaObservation(state(YOUNG)), None, id="one young authority"),
    pytest.param(CaObservation(state(NEARLY)), None, id="a minute before two thirds of its life"),
    pytest.param(CaObservation(state(DUE)), Action.INTRODUCE, id="two thirds of its life are over"),
    pytest.param(CaObservation(state(DUE, NEXT)), None, id="the next one is introduced, and not trusted yet"),
    pytest.param(CaObservation(state(DUE, NEXT), trusted_for=TOO_SHORT), None, id="all trust it, for a moment"),
    pytest.param(
        CaObservation(state(DUE, NEXT), trusted_for=ENOUGH), Action.SWITCH, id="all trust it for long enough"
    ),
    pytest.param(
        CaObservation(state(YOUNG, None, FORMER, at=NOW - LIVES.leaf + HOUR)),
        None,
        id="leaves of the former may live",
    ),
    pytest.param(
        CaObservation(state(YOUNG, None, FORMER, at=NOW - LIVES.leaf)),
        Action.RETIRE,
        id="no leaf of the former may live",
    ),
    pytest.param(
        CaObservation(state(DUE, None, FORMER, at=NOW - LIVES.leaf)),
        Action.INTRODUCE,
        id="a renewal before a removal",
    ),
    # --- writes of others ---
    pytest.param(CaObservation(state(None)), Action.REPAIR, id="the signer is malformed"),
    pytest.param(CaObservation(CaState(None)), Action.REPAIR, id="the Secret is emptied"),
    pytest.param(CaObservation(state(None, NEXT)), Action.SWITCH, id="the signer is malformed, the next one exists"),
    pytest.param(CaObservation(CaState(YOUNG, None, ())), Action.FIX, id="the bundle is emptied"),
    pytest.param(
        CaObservation(CaState(YOUNG, None, (FORMER.certificate,), NOW)), Action.FIX, id="the signer not in it"
    ),
    pytest.param(
        CaObservation(CaState(YOUNG, NEXT, (YOUNG.certificate,))),
        Action.FIX,
        id="the next signer is not in the bundle",
    ),
    pytest.param(
        CaObservation(state(STRANGER), serving=YOUNG.certificate), Action.FIX, id="the Secret has another pair"
    ),
    pytest.param(CaObservation(state(STRANGER), serving=ENDED.certificate), None, id="our own signer has expired"),
    pytest.param(
        CaObservation(CaState(YOUNG, None, (FORMER.certificate, YOUNG.certificate), NOW)),
        Action.FIX,
        id="out of order",
    ),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=None)), Action.FIX, id="the time of the switch is lost"),
    # --- clocks ---
    pytest.param(CaObservation(state(ENDED)), Action.REPAIR, id="the clock has jumped beyond the signer's end"),
    pytest.param(
        CaObservation(state(UNBORN)), Action.REPAIR, id="the clock was set back before the signer's beginning"
    ),
    pytest.param(
        CaObservation(state(ENDED, NEXT)), Action.SWITCH, id="the signer has ended before the next was trusted"
    ),
    pytest.param(CaObservation(state(ENDED, ENDED)), Action.REPAIR, id="both have expired while no replica ran"),
    pytest.param(CaObservation(state(YOUNG, ENDED)), Action.FIX, id="the next one has ended before it began"),
    pytest.param(CaObservation(state(YOUNG, UNBORN)), Action.FIX, id="the next one is from a clock ahead of ours"),
    pytest.param(CaObservation(state(YOUNG, None, ENDED)), Action.FIX, id="a former one has ended"),
    pytest.param(
        CaObservation(state(YOUNG, None, FORMER, at=NOW + BACKDATED)), None, id="the switch was in the near future"
    ),
    pytest.param(
        CaObservation(state(YOUNG, None, FORMER, at=NOW + 2 * BACKDATED)),
        Action.FIX,
        id="the switch was in the future",
    ),
]


@pytest.mark.parametrize(("observation", "action"), ROWS)
def test_the_step_that_is_due(observation: CaObservation, action: Action | None) -> None:
    step = rotate(observation, NOW, LIVES)
    assert step.action == action
    assert step.why


@pytest.mark.parametrize("observation", [row.values[0] for row in ROWS])
def test_a_step_taken_is_not_due_again(observation: CaObservation) -> None:
    """Otherwise replicas would write indefinitely, and each would wait for the others."""
    action = rotate(observation, NOW, LIVES).action
    if action is None:
        return
    fresh = authority(NOW)
    new_state = after(action, observation, fresh, NOW)
    again = rotate(replace(observation, secret=new_state, trusted_for=None), NOW, LIVES).action
    assert again in (None, Action.INTRODUCE)
    assert again is None or action is Action.FIX
    assert new_state.active is not None
    assert is_valid_at(new_state.active.certificate, NOW)
    assert new_state.active.certificate in new_state.bundle
    if observation.serving is not None and is_valid_at(observation.serving, NOW):
        assert observation.serving in new_state.bundle, "a certificate in use remains trusted"


class TestWhatIsWritten:
    def test_renewal_keeps_each_signer_until_its_leaves_are_replaced(
        self,
    ) -> None:
        after_introduction = after(Action.INTRODUCE, CaObservation(state(DUE)), NEXT, NOW)
        assert after_introduction == CaState(DUE, NEXT, (DUE.certificate, NEXT.certificate), NOW)
        after_switch = after(Action.SWITCH, CaObservation(after_introduction), STRANGER, NOW + HOUR)
        assert after_switch == CaState(NEXT, None, (NEXT.certificate, DUE.certificate), NOW + HOUR)
        after_retirement = after(Action.RETIRE, CaObservation(after_switch), STRANGER, NOW + LIVES.leaf)
        assert after_retirement == CaState(NEXT, None, (NEXT.certificate,), NOW + HOUR)

    def test_a_deleted_secret_is_recreated_and_its_new_authority_introduced(self) -> None:
        observation = CaObservation(None, last_good=state(YOUNG, NEXT, FORMER), serving=YOUNG.certificate)
        new_state = after(Action.CREATE, observation, STRANGER, NOW)
        assert (new_state.active, new_state.upcoming) == (YOUNG, STRANGER)
        assert set(new_state.bundle) == {c.certificate for c in (YOUNG, STRANGER, NEXT, FORMER)}

    def test_a_new_replica_keeps_the_published_certificates_trusted(self) -> None:
        new_state = after(
            Action.CREATE, CaObservation(None, published_cas=(FORMER.certificate, ENDED.certificate)), STRANGER, NOW
        )
        assert new_state == CaState(STRANGER, None, (STRANGER.certificate, FORMER.certificate), NOW)

    def test_an_expired_signer_is_not_used(self) -> None:
        new_state = after(Action.REPAIR, CaObservation(CaState(None), last_good=state(ENDED)), STRANGER, NOW)
        assert new_state == CaState(STRANGER, None, (STRANGER.certificate,), NOW)

    def test_the_bundle_is_bounded(self) -> None:
        many = tuple(authority(NOW - timedelta(days=days)).certificate for days in range(MAX_BUNDLE + 5))
        new_state = after(Action.FIX, CaObservation(replace(state(YOUNG), bundle=many)), STRANGER, NOW)
        assert new_state.bundle == (YOUNG.certificate, *many[: MAX_BUNDLE - 1])


LEAF = leaf_of(YOUNG, at=NOW)
LEAVES = [
    pytest.param(None, YOUNG, [], NOW, True, id="the first"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW, False, id="a young one"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + 7 * DAY * RENEW_AT, True, id="two thirds of its life are over"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + 4 * DAY, False, id="not yet"),
    pytest.param(LEAF, YOUNG, [], NOW + 7 * DAY, True, id="it has ended"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW - 2 * BACKDATED, True, id="the clock was set back before its beginning"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + YEAR - 2 * DAY, True, id="the clock has jumped"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + YEAR, False, id="the clock has jumped beyond the signer's end"),
    pytest.param(None, ENDED, [ENDED], NOW, False, id="the first, of a signer that has ended"),
    pytest.param(LEAF, NEXT, [YOUNG, NEXT], NOW, True, id="another signer, trusted by all"),
    pytest.param(LEAF, NEXT, [YOUNG], NOW, False, id="another signer that the API server does not trust"),
    pytest.param(LEAF, NEXT, [YOUNG], NOW + 6 * DAY, False, id="an untrusted signer, even when a renewal is due"),
    pytest.param(LEAF, NEXT, [YOUNG], NOW + 7 * DAY, True, id="at its end it is renewed in any case"),
]


@pytest.mark.parametrize(("leaf", "signer", "trusted_authorities", "now", "due"), LEAVES)
def test_when_a_leaf_is_signed(
    leaf: Leaf | None, signer: Authority, trusted_authorities: list[Authority], now: datetime, due: bool
) -> None:
    assert (
        leaf_due(
            leaf, signer, [signing_authority.certificate for signing_authority in trusted_authorities], now, LIVES
        )
        is due
    )


def test_without_the_secret_a_certificate_is_renewed_only_before_it_expires() -> None:
    assert not stale_leaf_due(LEAF, NOW + 6 * DAY)
    assert stale_leaf_due(LEAF, NOW + 6.9 * DAY)


def test_replicas_renew_at_different_times() -> None:
    late, early = replace(LIVES, jitter=0.0), replace(LIVES, jitter=0.999)
    assert rotate(CaObservation(state(DUE)), NOW - YEAR * JITTER / 2, late).action is None
    assert rotate(CaObservation(state(DUE)), NOW - YEAR * JITTER / 2, early).action is Action.INTRODUCE


@dataclass
class Replica:
    """One replica without a cluster: what it serves and what it has cached."""

    leaf: Leaf | None = None
    cached_secret: CaState | None = None
    trusted_since: dict[x509.Certificate, datetime] = field(default_factory=dict)


@dataclass
class World:
    """The replicas' shared state, and a clock. A replica's turn is one pass; trust is verified after every turn."""

    now: datetime = NOW
    secret: CaState | None = None
    bundle: tuple[x509.Certificate, ...] = ()
    actions: list[Action] = field(default_factory=list)

    def turn(self, replica: Replica) -> None:
        certificates = set(self.bundle)
        replica.trusted_since = {c: replica.trusted_since.get(c, self.now) for c in certificates}
        upcoming = self.secret.upcoming if self.secret else None
        since = replica.trusted_since.get(upcoming.certificate) if upcoming else None
        observation = CaObservation(
            self.secret,
            replica.cached_secret,
            replica.leaf.signer if replica.leaf else None,
            self.bundle,
            None if since is None else self.now - since,
        )
        action = rotate(observation, self.now, LIVES).action
        if action is not None:
            self.secret = after(action, observation, authority(self.now, LIVES.authority), self.now)
            self.actions.append(action)
        assert self.secret is not None
        assert self.secret.active is not None
        replica.cached_secret = self.secret
        self.bundle = self.secret.bundle
        signers = [c for c, since in replica.trusted_since.items() if since + LIVES.grace <= self.now]
        if leaf_due(replica.leaf, self.secret.active, signers, self.now, LIVES):
            replica.leaf = sign_leaf(self.secret.active, ["localhost"], self.now, LIVES.leaf)

    def verifies(self, replica: Replica) -> bool:
        leaf = replica.leaf
        return leaf is not None and is_valid_at(leaf.certificate, self.now) and leaf.signer in self.bundle


def live_through(world: World, replicas: list[Replica], span: timedelta, pause: timedelta) -> None:
    """Let the replicas take turns; after each turn all of them are verified."""
    end = world.now + span
    while world.now < end:
        for replica in replicas:
            world.turn(replica)
            assert all(world.verifies(peer) for peer in replicas if peer.leaf is not None)
        world.now += pause


def test_three_replicas_are_trusted_throughout_three_years() -> None:
    world, replicas = World(), [Replica() for _ in range(3)]
    live_through(world, replicas, 3 * YEAR, DAY / 2)
    assert world.actions.count(Action.SWITCH) == 4
    assert set(world.actions) == {Action.CREATE, Action.INTRODUCE, Action.SWITCH, Action.RETIRE}
    assert world.secret is not None
    assert len(world.secret.bundle) <= 2


@pytest.mark.parametrize("rest", range(4))
def test_a_replica_that_starts_or_stops_at_any_step_changes_nothing(rest: int) -> None:
    world, old = World(secret=state(DUE), bundle=(DUE.certificate,)), Replica()
    for _ in range(rest):
        world.turn(old)
        world.now += LIVES.grace
    live_through(world, [Replica(), Replica()], YEAR / 2, DAY / 2)
    assert world.actions.count(Action.SWITCH) == 1
    assert world.secret is not None
    assert len(world.secret.bundle) == 1


@pytest.mark.parametrize(
    "new_secret",
    [
        pytest.param(None, id="deleted"),
        pytest.param(CaState(None), id="emptied"),
        pytest.param(state(STRANGER), id="replaced by another authority"),
        pytest.param(CaState(STRANGER, None, ()), id="replaced by one without a bundle"),
        pytest.param(state(ENDED), id="replaced by one that has ended"),
        pytest.param(state(None, STRANGER), id="left with another one to come"),
    ],
)
def test_no_change_of_the_secret_costs_a_call(new_secret: CaState | None) -> None:
    world, replicas = World(), [Replica(), Replica()]
    live_through(world, replicas, 3 * DAY, HOUR)
    for _ in range(3):
        world.secret = new_secret
        live_through(world, replicas, 30 * DAY, HOUR)
    assert world.secret is not None
    assert len(world.secret.bundle) == 1, "temporary entries are removed at the end"


@pytest.mark.parametrize("jump", [2 * HOUR, 10 * DAY, 2 * YEAR, -2 * HOUR, -10 * DAY, -2 * YEAR])
def test_after_a_jump_of_the_clock_one_pass_restores_trust(jump: timedelta) -> None:
    world, replicas = World(), [Replica(), Replica()]
    live_through(world, replicas, 3 * DAY, HOUR)
    world.now += jump
    for _ in range(2):
        for replica in replicas:
            world.turn(replica)
        world.now += LIVES.grace
    live_through(world, replicas, 3 * DAY, HOUR)
