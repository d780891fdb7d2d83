"""The rotation of the CA: each step as a row, its writes, and complete lifecycles without a cluster."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from bowline_webhook.tls.ca import BACKDATED, Authority, Leaf, is_valid_at, sign_leaf
from bowline_webhook.tls.rotation import (
    CA_LIFE,
    GRACE,
    LEAF_LIFE,
    MAX_BUNDLE,
    RENEW_AT,
    Action,
    CaObservation,
    CaState,
    after,
    leaf_due,
    rotate,
)
from tests.unit.webhook.tls import DAY, NOW, YEAR, authority, leaf_of

YOUNG, NEXT, FORMER, STRANGER = authority(NOW - DAY), authority(NOW - DAY), authority(NOW - YEAR / 2), authority(NOW)
DUE = authority(NOW - YEAR * RENEW_AT)
NEARLY = authority(NOW - YEAR * RENEW_AT + timedelta(minutes=1))
ENDED = authority(NOW - YEAR)
UNBORN = authority(NOW + 2 * BACKDATED)
HOUR = timedelta(hours=1)
ENOUGH, TOO_SHORT = GRACE, GRACE - timedelta(seconds=1)


def state(
    active: Authority | None, upcoming: Authority | None = None, *former: Authority, at: datetime | None = NOW
) -> CaState:
    signers = [signer.certificate for signer in (active, upcoming, *former) if signer is not None]
    return CaState(active, upcoming, tuple(signers), at)


ROWS = [
    pytest.param(CaObservation(state(YOUNG)), None, id="one young authority"),
    pytest.param(CaObservation(state(NEARLY)), None, id="a minute before two thirds of its life"),
    pytest.param(CaObservation(state(DUE)), Action.INTRODUCE, id="two thirds of its life are over"),
    pytest.param(CaObservation(state(DUE, NEXT)), None, id="the next one is introduced, and not trusted yet"),
    pytest.param(CaObservation(state(DUE, NEXT), trusted_for=TOO_SHORT), None, id="all trust it, for a moment"),
    pytest.param(CaObservation(state(DUE, NEXT), trusted_for=ENOUGH), Action.SWITCH,
        id="all trust it for long enough"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=NOW - LEAF_LIFE + HOUR)), None,
        id="leaves of the former may live"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=NOW - LEAF_LIFE)), Action.RETIRE,
        id="no leaf of the former may live"),
    pytest.param(CaObservation(state(DUE, None, FORMER, at=NOW - LEAF_LIFE)), Action.INTRODUCE,
        id="a renewal before a removal"),
    pytest.param(CaObservation(state(YOUNG), own=YOUNG, published_cas=(FORMER.certificate,)), None,
        id="a running process removes what is published and not in the bundle"),
    pytest.param(CaObservation(state(STRANGER), serving=ENDED.certificate), None, id="our own signer has expired"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=NOW + BACKDATED)), None,
        id="the switch was in the near future"),
    pytest.param(CaObservation(state(YOUNG), published_cas=(ENDED.certificate,)), None,
        id="a published CA has expired"),
]  # fmt: skip
# What only a process without a valid CA of its own, that some entry trusts, corrects.
BROKEN = [
    pytest.param(CaObservation(CaState(None)), id="the Secret is empty"),
    pytest.param(CaObservation(state(None)), id="the signer is malformed"),
    pytest.param(CaObservation(state(None, NEXT)), id="the signer is malformed, the next one exists"),
    pytest.param(CaObservation(CaState(YOUNG, None, ())), id="the bundle is emptied"),
    pytest.param(CaObservation(CaState(YOUNG, None, (FORMER.certificate,), NOW)), id="the signer is not in it"),
    pytest.param(CaObservation(CaState(YOUNG, NEXT, (YOUNG.certificate,))), id="the next signer is not in it"),
    pytest.param(CaObservation(state(STRANGER), serving=YOUNG.certificate), id="the Secret has another pair"),
    pytest.param(CaObservation(state(ENDED)), id="the signer has ended"),
    pytest.param(CaObservation(state(UNBORN)), id="the signer begins later"),
    pytest.param(CaObservation(state(ENDED, NEXT)), id="the signer has ended before the next was trusted"),
    pytest.param(CaObservation(state(ENDED, ENDED)), id="both have expired while no replica ran"),
    pytest.param(CaObservation(state(YOUNG, ENDED)), id="the next one has ended before it began"),
    pytest.param(CaObservation(state(YOUNG, UNBORN)), id="the next one is from a clock ahead of ours"),
]
AT_START = [
    pytest.param(CaObservation(state(YOUNG), published_cas=(YOUNG.certificate, FORMER.certificate)),
        id="another replica may serve a certificate of a published CA"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=None)), id="the time of the switch is lost"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=NOW + 2 * BACKDATED)),
        id="the switch was in the future"),
    pytest.param(CaObservation(state(YOUNG, None, FORMER, at=datetime.max.replace(tzinfo=UTC))),
        id="the switch was at the latest time"),
]  # fmt: skip


@pytest.mark.parametrize(("observation", "action"), ROWS)
def test_the_step_that_is_due(observation: CaObservation, action: Action | None) -> None:
    step = rotate(observation, NOW)
    assert (step.action, step.is_broken) == (action, False)
    assert step.why


@pytest.mark.parametrize("observation", BROKEN)
@pytest.mark.parametrize(
    ("own", "action"),
    [
        pytest.param(None, Action.REPAIR, id="a process that has just started"),
        pytest.param(ENDED, Action.REPAIR, id="a process whose CA has expired"),
        pytest.param(UNBORN, Action.REPAIR, id="a process whose CA begins later"),
        pytest.param(NEARLY, Action.REPAIR, id="a process whose CA no entry trusts"),
        pytest.param(FORMER, None, id="a process with a CA reports it"),
    ],
)
def test_a_secret_that_cannot_be_used(
    observation: CaObservation, own: Authority | None, action: Action | None
) -> None:
    step = rotate(replace(observation, own=own, published_cas=(FORMER.certificate,)), NOW)
    assert (step.action, step.is_broken) == (action, action is None)
    assert step.why


@pytest.mark.parametrize("observation", AT_START)
def test_what_costs_no_call_is_corrected_by_the_next_process_that_starts(observation: CaObservation) -> None:
    assert rotate(observation, NOW).action is Action.REPAIR
    assert rotate(replace(observation, own=YOUNG), NOW) == rotate(
        replace(observation, own=YOUNG, published_cas=()), NOW
    )


@pytest.mark.parametrize("observation", [row.values[0] for row in (*ROWS, *BROKEN, *AT_START)])
def test_a_step_taken_is_not_due_again(observation: CaObservation) -> None:
    """Otherwise replicas would write indefinitely, and each would wait for the others."""
    action = rotate(observation, NOW).action
    if action is None:
        return
    fresh = authority(NOW)
    new_state = after(action, observation, fresh, NOW)
    again = rotate(replace(observation, secret=new_state, trusted_for=None), NOW)
    assert (again.action, again.is_broken) == (None, False)
    assert new_state.active is not None
    assert is_valid_at(new_state.active.certificate, NOW)
    assert new_state.active.certificate in new_state.bundle
    if observation.serving is not None and is_valid_at(observation.serving, NOW):
        assert observation.serving in new_state.bundle, "a certificate in use remains trusted"


class TestWhatIsWritten:
    def test_a_repair_keeps_what_is_usable_and_what_is_published(self) -> None:
        observation = CaObservation(
            CaState(None, NEXT, (STRANGER.certificate,)), published_cas=(FORMER.certificate, ENDED.certificate)
        )
        new_state = after(Action.REPAIR, observation, DUE, NOW)
        assert (new_state.active, new_state.upcoming, new_state.switched_at) == (NEXT, None, NOW)
        assert set(new_state.bundle) == {c.certificate for c in (NEXT, STRANGER, FORMER)}
        kept = after(Action.REPAIR, CaObservation(CaState(YOUNG, NEXT, ())), DUE, NOW)
        assert kept == CaState(YOUNG, NEXT, (YOUNG.certificate, NEXT.certificate), NOW)

    def test_the_bundle_is_bounded(self) -> None:
        many = tuple(authority(NOW - timedelta(days=days)).certificate for days in range(MAX_BUNDLE + 5))
        new_state = after(Action.REPAIR, CaObservation(replace(state(YOUNG), bundle=many)), STRANGER, NOW)
        assert new_state.bundle == (YOUNG.certificate, *many[: MAX_BUNDLE - 1])


LEAF = leaf_of(YOUNG, at=NOW)
LEAVES = [
    pytest.param(None, YOUNG, [], NOW, True, id="the first"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW, False, id="a young one"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + 7 * DAY * RENEW_AT, True, id="two thirds of its life are over"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW + 4 * DAY, False, id="not yet"),
    pytest.param(LEAF, YOUNG, [], NOW + 7 * DAY, True, id="it has ended"),
    pytest.param(LEAF, YOUNG, [YOUNG], NOW - 2 * BACKDATED, True, id="the clock was set back before its beginning"),
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
        leaf_due(leaf, signer, [signing_authority.certificate for signing_authority in trusted_authorities], now)
        is due
    )


@dataclass
class Replica:
    """One replica without a cluster: what it serves and its last usable state of the Secret."""

    leaf: Leaf | None = None
    last_good: CaState | None = None
    trusted_since: dict[x509.Certificate, datetime] = field(default_factory=dict)


@dataclass
class World:
    """The replicas' shared state, and a clock. A replica's turn is one pass; trust is verified after every turn."""

    now: datetime = NOW
    secret: CaState = field(default_factory=lambda: CaState(None))
    bundle: tuple[x509.Certificate, ...] = ()
    actions: list[Action] = field(default_factory=list)

    def turn(self, replica: Replica) -> None:
        replica.trusted_since = {c: replica.trusted_since.get(c, self.now) for c in set(self.bundle)}
        upcoming = self.secret.upcoming
        since = replica.trusted_since.get(upcoming.certificate) if upcoming else None
        observation = CaObservation(
            self.secret,
            replica.last_good.active if replica.last_good else None,
            replica.leaf.signer if replica.leaf else None,
            self.bundle,
            None if since is None else self.now - since,
        )
        step = rotate(observation, self.now)
        if step.is_broken:
            assert replica.last_good is not None
            self.sign(replica, replica.last_good)
            return
        if step.action is not None:
            self.secret = after(step.action, observation, authority(self.now, CA_LIFE), self.now)
            self.actions.append(step.action)
        replica.last_good = self.secret
        self.bundle = self.secret.bundle
        self.sign(replica, self.secret)

    def sign(self, replica: Replica, cas: CaState) -> None:
        assert cas.active is not None
        signers = [c for c, since in replica.trusted_since.items() if since + GRACE <= self.now]
        if leaf_due(replica.leaf, cas.active, signers, self.now):
            replica.leaf = sign_leaf(cas.active, ["localhost"], self.now, LEAF_LIFE)

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
    assert set(world.actions) == set(Action)
    assert len(world.secret.bundle) <= 2


@pytest.mark.parametrize(
    "new_secret",
    [
        pytest.param(CaState(None), id="emptied"),
        pytest.param(state(STRANGER), id="replaced by another authority"),
        pytest.param(CaState(STRANGER, None, ()), id="replaced by one without a bundle"),
        pytest.param(state(ENDED), id="replaced by one that has ended"),
        pytest.param(state(None, STRANGER), id="left with another one to come"),
    ],
)
def test_no_change_of_the_secret_costs_a_call(new_secret: CaState) -> None:
    """It is reported, and the replicas serve on; their restart, one after the other, repairs it."""
    world, replicas = World(), [Replica(), Replica()]
    live_through(world, replicas, 3 * DAY, HOUR)
    for _ in range(3):
        world.secret = new_secret
        live_through(world, replicas, 15 * DAY, HOUR)
        assert world.secret == new_secret
        replicas = [Replica(), replicas[0]]
        live_through(world, replicas, DAY, HOUR)
        replicas = [Replica(), replicas[0]]
        live_through(world, replicas, 15 * DAY, HOUR)
        assert world.secret.active is not None
        assert len(world.secret.bundle) == 1, "temporary entries are removed at the end"


@pytest.mark.parametrize("jump", [2 * HOUR, 10 * DAY, 2 * YEAR, -2 * HOUR, -10 * DAY, -2 * YEAR])
def test_after_a_jump_of_the_clock_one_pass_restores_trust(jump: timedelta) -> None:
    world, replicas = World(), [Replica(), Replica()]
    live_through(world, replicas, 3 * DAY, HOUR)
    world.now += jump
    for _ in range(2):
        for replica in replicas:
            world.turn(replica)
        world.now += GRACE
    live_through(world, replicas, 3 * DAY, HOUR)
