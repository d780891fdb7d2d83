"""Rotation of the self-signed webhook's CA: what is observed and ``now`` in, a step out. Pure.

Any replica may execute any step, or continue after another one. All CAs are in one Secret (``CaState``). No API
server may ever meet a certificate that it does not trust yet, so a renewal has three steps, each observed to have
taken effect before the next:

1. *introduce*: a new CA is added to the bundle; every webhook entry is made to trust old and new;

2. *switch*, when every entry has held the new one for the grace period: it signs from now on;

3. *retire*, when no certificate of the old CA can be valid any more: the bundle is the new one alone.

*create*, *repair* and *fix* correct a deleted, unusable or inconsistent Secret. A CA that verifies certificates in
use stays in the bundle throughout, so that even a deleted Secret does not fail a call. Decision 45.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509

from bowline_webhook.tls.ca import BACKDATED, Authority, Leaf, is_valid_at, part_of_life

# Renew after two thirds of the lifetime: the last third is the reserve for failures.
RENEW_AT = 2 / 3
# Replicas started together must not renew together: each is early by up to this fraction of the lifetime.
JITTER = 0.05
# While the API server is unreachable a leaf is not renewed before this: the signer may have been replaced unnoticed.
RENEW_UNSEEN_AT = 0.95
# More CAs than rotation can accumulate; each is about 700 bytes in every webhook entry. The newest are kept.
MAX_BUNDLE = 16


class Action(StrEnum):
    """The actions on the Secret."""

    CREATE = "create"
    REPAIR = "repair"
    FIX = "fix"
    INTRODUCE = "introduce"
    SWITCH = "switch"
    RETIRE = "retire"


# While one of these is due, the Secret's content must not be published.
REPAIRING = frozenset({Action.CREATE, Action.REPAIR, Action.FIX})


@dataclass(frozen=True, slots=True)
class RotationStep:
    """The action that is due, or None, and the reason."""

    action: Action | None
    why: str


@dataclass(frozen=True, slots=True)
class CertLifetimes:
    """Lifetimes. ``jitter`` is this replica's own, in [0, 1)."""

    leaf: timedelta
    authority: timedelta
    grace: timedelta  # for API servers to observe a changed configuration
    jitter: float = 0.0

    @property
    def renew_at(self) -> float:
        """Return the fraction of a lifetime after which this replica renews."""
        return RENEW_AT - JITTER * self.jitter


# A leaf must be signable before, and expire after, the last third of its CA's lifetime.
LIFETIMES = CertLifetimes(leaf=timedelta(days=7), authority=timedelta(days=365), grace=timedelta(seconds=30))


@dataclass(frozen=True, slots=True)
class CaState:
    """The Secret's content. ``active`` signs; ``upcoming`` has been introduced and signs next."""

    active: Authority | None
    upcoming: Authority | None = None
    bundle: tuple[x509.Certificate, ...] = ()
    switched_at: datetime | None = None

    @property
    def previous(self) -> tuple[x509.Certificate, ...]:
        """Return the CAs that no longer sign but stay in the bundle."""
        current = {signer.certificate for signer in (self.active, self.upcoming) if signer is not None}
        return tuple(certificate for certificate in self.bundle if certificate not in current)


@dataclass(frozen=True, slots=True)
class CaObservation:
    """What one replica observes.

    - ``secret``: the Secret's state; None if it does not exist.
    - ``last_good``: the last good state that this process has had.
    - ``serving``: the signer of the leaf that this process serves.
    - ``published_cas``: the CAs that some webhook entry trusts.
    - ``trusted_for``: how long every entry has been observed to trust ``upcoming``; None if not all do.
    """

    secret: CaState | None
    last_good: CaState | None = None
    serving: x509.Certificate | None = None
    published_cas: tuple[x509.Certificate, ...] = ()
    trusted_for: timedelta | None = None


def rotate(observation: CaObservation, now: datetime, lifetimes: CertLifetimes) -> RotationStep:  # noqa: PLR0911 - a table returns row by row
    """Return the step that is due."""
    state = observation.secret
    if state is None:
        return RotationStep(Action.CREATE, "there is no Secret")
    if not _usable(state.active, now):
        if _usable(state.upcoming, now):
            return RotationStep(Action.SWITCH, "the signer is not valid")
        return RotationStep(Action.REPAIR, "there is no valid signer")
    error = _error(state, observation.serving, now)
    if error:
        return RotationStep(Action.FIX, error)
    if state.upcoming is not None:
        return _introduction_step(observation.trusted_for, lifetimes)
    if state.active is not None and part_of_life(state.active.certificate, lifetimes.renew_at) <= now:
        return RotationStep(Action.INTRODUCE, "the signer has lived two thirds of its life")
    if state.previous and state.switched_at is not None and state.switched_at + lifetimes.leaf <= now:
        return RotationStep(Action.RETIRE, "every certificate of the former CA has expired")
    return RotationStep(None, "former signers are still trusted" if state.previous else "all is well")


def after(action: Action, observation: CaObservation, fresh: Authority, now: datetime) -> CaState:
    """Return the Secret's state after the action; ``fresh`` is a new CA, used if one is needed."""
    state = observation.secret or CaState(None)
    match action:
        case Action.CREATE | Action.REPAIR:
            last_active = observation.last_good.active if observation.last_good is not None else None
            surviving = last_active if _usable(last_active, now) else None
            bundle_before = observation.last_good.bundle if observation.last_good is not None else ()
            state_after = CaState(
                surviving or fresh,
                fresh if surviving else None,
                (*bundle_before, *state.bundle, *observation.published_cas),
                now,
            )
        case Action.FIX:
            upcoming = state.upcoming if _usable(state.upcoming, now) else None
            state_after = replace(
                state, upcoming=upcoming, switched_at=now
            )  # kept CAs stay for another leaf lifetime
        case Action.INTRODUCE:
            state_after = replace(state, upcoming=fresh)
        case Action.SWITCH:
            state_after = replace(state, active=state.upcoming, upcoming=None, switched_at=now)
        case Action.RETIRE:
            state_after = replace(state, bundle=())
    cas = state_after.bundle
    if action is not Action.RETIRE and observation.serving is not None:
        cas = (*cas, observation.serving)
    return replace(state_after, bundle=_bundle(state_after, cas, now))


def leaf_due(
    leaf: Leaf | None,
    signer: Authority,
    trusted_cas: Iterable[x509.Certificate],
    now: datetime,
    lifetimes: CertLifetimes,
) -> bool:
    """Return whether a new leaf of the signer must be served. ``trusted_cas``: the CAs in every entry.

    A valid leaf is never replaced by one that the API server does not trust yet. Does not sign with an expired CA:
    wait until the Secret has been repaired, which needs the API server.
    """
    if not _usable(signer, now):
        return False
    if leaf is None or not is_valid_at(leaf.certificate, now):
        return True
    if signer.certificate not in set(trusted_cas):
        return False
    return leaf.signer != signer.certificate or part_of_life(leaf.certificate, lifetimes.renew_at) <= now


def stale_leaf_due(leaf: Leaf, now: datetime) -> bool:
    """Return whether to renew a leaf although its signer may have been replaced: only shortly before it expires."""
    return part_of_life(leaf.certificate, RENEW_UNSEEN_AT) <= now


def _introduction_step(trusted_for: timedelta | None, lifetimes: CertLifetimes) -> RotationStep:
    if trusted_for is None:
        return RotationStep(None, "the new signer is not in every webhook entry yet")
    if trusted_for < lifetimes.grace:
        return RotationStep(None, "API servers are given time to read that the new signer is trusted")
    return RotationStep(Action.SWITCH, "every webhook entry trusts the new signer")


def _usable(signer: Authority | None, now: datetime) -> bool:
    return signer is not None and is_valid_at(signer.certificate, now)


def _error(state: CaState, serving: x509.Certificate | None, now: datetime) -> str:
    """Return the first inconsistency of a Secret whose signer is valid; empty if there is none."""
    if state.upcoming is not None and not _usable(state.upcoming, now):
        return "the new signer is not valid"
    for signer in (state.active, state.upcoming):
        if signer is not None and signer.certificate not in state.bundle:
            return "the bundle lacks a signer"
    if serving is not None and is_valid_at(serving, now) and serving not in state.bundle:
        return "the bundle lacks the signer of a certificate in use"
    if state.bundle != _bundle(state, state.bundle, now):
        return "the bundle holds what has expired"
    if state.previous and (state.switched_at is None or state.switched_at > now + BACKDATED):
        # A wrong clock, or a manual edit.
        return "the time of the last switch is not known"
    return ""


def _bundle(state: CaState, cas: Iterable[x509.Certificate], now: datetime) -> tuple[x509.Certificate, ...]:
    """Return the bundle in its canonical order: current signers, then previous ones, newest first."""
    signers = [signer.certificate for signer in (state.active, state.upcoming) if signer is not None]
    former = {certificate for certificate in cas if is_valid_at(certificate, now)} - set(signers)
    newest = sorted(former, key=lambda c: (c.not_valid_before_utc, c.serial_number), reverse=True)
    return (*signers, *newest[: MAX_BUNDLE - len(signers)])
