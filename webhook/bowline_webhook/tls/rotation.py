"""Rotation of the self-signed webhook's CA: what is observed and ``now`` in, a step out. Pure.

Any replica may execute any step, or continue after another one. All CAs are in one Secret (``CaState``). No API
server may ever meet a certificate that it does not trust yet, so a renewal has three steps, each observed to have
taken effect before the next:

1. *introduce*: a new CA is added to the bundle; every webhook entry is made to trust old and new;

2. *switch*, when every entry has held the new one for the grace period: it signs from now on;

3. *retire*, when no certificate of the old CA can be valid any more: the bundle is the new one alone.

*repair* fills an empty or unusable Secret; only a process without a valid CA of its own does it, so one that has just
started, or whose CA has expired. A process that has one reports the Secret and serves on. A CA that verifies
certificates in use stays in the bundle throughout.

A CA that the chart renders would break the certificates at each upgrade, and with a leader among the replicas serving
would depend on one of them. The webhook may create no Secret: who may, creates a token of any account.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509

from bowline_webhook.tls.ca import BACKDATED, Authority, Leaf, is_valid_at, part_of_life

# A leaf must be signable before, and expire after, the last third of its CA's lifetime.
LEAF_LIFE = timedelta(days=7)
CA_LIFE = timedelta(days=365)
# For API servers to observe a changed configuration.
GRACE = timedelta(seconds=30)
# Renew after two thirds of the lifetime: the last third is the reserve for failures.
RENEW_AT = 2 / 3
# More CAs than rotation can accumulate; each is about 700 bytes in every webhook entry. The newest are kept.
MAX_BUNDLE = 16


class Action(StrEnum):
    """The actions on the Secret."""

    REPAIR = "repair"
    INTRODUCE = "introduce"
    SWITCH = "switch"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True)
class RotationStep:
    """The action that is due, or None, and the reason. ``is_broken``: the Secret must not be used."""

    action: Action | None
    why: str
    is_broken: bool = False


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

    - ``secret``: the Secret's state.
    - ``own``: the CA that this process has signed with, or would sign with, before; None if it has just started.
    - ``serving``: the signer of the leaf that this process serves.
    - ``published_cas``: the CAs that some webhook entry trusts.
    - ``trusted_for``: how long every entry has been observed to trust ``upcoming``; None if not all do.
    """

    secret: CaState
    own: Authority | None = None
    serving: x509.Certificate | None = None
    published_cas: tuple[x509.Certificate, ...] = ()
    trusted_for: timedelta | None = None


def rotate(observation: CaObservation, now: datetime) -> RotationStep:
    """Return the step that is due."""
    state = observation.secret
    error = _error(observation, now)
    if error:
        # A process whose own CA no entry trusts has nothing to lose: it repairs.
        own = observation.own if _usable(observation.own, now) else None
        is_broken = own is not None and own.certificate in observation.published_cas
        return RotationStep(None if is_broken else Action.REPAIR, error, is_broken)
    if state.upcoming is not None:
        return _introduction_step(observation.trusted_for)
    if state.active is not None and part_of_life(state.active.certificate, RENEW_AT) <= now:
        return RotationStep(Action.INTRODUCE, "the signer has lived two thirds of its life")
    if state.previous and state.switched_at is not None and now - state.switched_at >= LEAF_LIFE:
        return RotationStep(Action.RETIRE, "every certificate of the former CA has expired")
    return RotationStep(None, "former signers are still trusted" if state.previous else "all is well")


def after(action: Action, observation: CaObservation, fresh: Authority, now: datetime) -> CaState:
    """Return the Secret's state after the action; ``fresh`` is a new CA, used if one is needed."""
    state = observation.secret
    match action:
        case Action.REPAIR:
            active, upcoming = (signer if _usable(signer, now) else None for signer in (state.active, state.upcoming))
            bundle = (*state.bundle, *observation.published_cas)
            if active is None:
                active, upcoming = upcoming or fresh, None
            state_after = CaState(active, upcoming, bundle, now)
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
    return leaf.signer != signer.certificate or part_of_life(leaf.certificate, RENEW_AT) <= now


def _introduction_step(trusted_for: timedelta | None) -> RotationStep:
    if trusted_for is None:
        return RotationStep(None, "the new signer is not in every webhook entry yet")
    if trusted_for < GRACE:
        return RotationStep(None, "API servers are given time to read that the new signer is trusted")
    return RotationStep(Action.SWITCH, "every webhook entry trusts the new signer")


def _usable(signer: Authority | None, now: datetime) -> bool:
    return signer is not None and is_valid_at(signer.certificate, now)


def _error(observation: CaObservation, now: datetime) -> str:
    """Return why the Secret must not be used as it is; empty if it may."""
    state, serving = observation.secret, observation.serving
    if not _usable(state.active, now):
        return "there is no valid signer"
    if state.upcoming is not None and not _usable(state.upcoming, now):
        return "the new signer is not valid"
    for signer in (state.active, state.upcoming):
        if signer is not None and signer.certificate not in state.bundle:
            return "the bundle lacks a signer"
    if serving is not None and is_valid_at(serving, now) and serving not in state.bundle:
        return "the bundle lacks the signer of a certificate in use"
    return "" if _usable(observation.own, now) else _error_at_start(observation, now)


def _error_at_start(observation: CaObservation, now: datetime) -> str:
    """Return what only a process that has just started corrects: it costs no call meanwhile."""
    state = observation.secret
    if any(ca not in state.bundle and is_valid_at(ca, now) for ca in observation.published_cas):
        # Another replica may serve a certificate of it.
        return "the bundle lacks a CA that a webhook entry trusts"
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
