"""A certificate from files that somebody else renews: cert-manager's Secret or one's own, mounted by the kubelet.

The files are compared by content, because a mounted Secret changes by symbolic links and at odd times. What is
served is replaced only by what is better than it: a pair that does not fit yet (one file is written, the other is
not) or one that is not valid today is left where it is, said once, and looked at again.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from shared.runtime.clock import Clock
from webhook.metrics import CertificateMetrics
from webhook.tls.ca import from_pem, is_valid_at
from webhook.tls.serving import CertificateError, ServingContext

log = logging.getLogger(__name__)

# A kubelet takes up to a minute and a half; this is little beside it.
_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class FilePaths:
    """Where the files are: chain and key, or neither with a self-signed one; authorities of callers, or none."""

    certificate: Path | None = None
    private_key: Path | None = None
    client_ca: Path | None = None


class CertificateFiles:
    """Keeps a ServingContext at what the files say."""

    def __init__(self, paths: FilePaths, metrics: CertificateMetrics, clock: Clock) -> None:
        self._paths = paths
        self._metrics = metrics
        self._clock = clock
        self._pair = b""
        self._client_ca = _read_callers(paths.client_ca) if paths.client_ca is not None else b""
        self._complained = ""
        self.serving = ServingContext(self._client_ca)
        self._load_pair()

    async def run(self) -> None:
        """Look at the files until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                self.look()
                self._complained = ""
            except CertificateError as error:
                self._complain(str(error))

    def look(self) -> None:
        """Serve what the files say now. Raises CertificateError if they say nothing better."""
        try:
            self._load_callers()
        finally:  # what is wrong with the callers' file must not keep a renewed certificate from being served
            self._load_pair()

    def _load_callers(self) -> None:
        if self._paths.client_ca is None:
            return
        found = _read_callers(self._paths.client_ca)
        if found != self._client_ca:
            self.serving.let_in(found)
            self._client_ca = found
            log.info("callers of other authorities are let in")

    def _load_pair(self) -> None:
        certificate, key = self._paths.certificate, self._paths.private_key
        if certificate is None or key is None:
            return
        pem = _read(certificate) + b"\n" + _read(key)
        if pem == self._pair:
            return
        try:
            refusal = worse(from_pem(pem), self.serving.certificate, self._clock.now())
            if refusal:
                raise CertificateError(refusal)  # noqa: TRY301 - one place names the files
            self.serving.swap(pem)
        except CertificateError as error:
            raise CertificateError(f"{certificate} and {key}: {error}") from error
        if self._pair:
            self._metrics.leaf_renewals.inc()
            log.info("serving the renewed certificate")
        self._pair = pem

    def _complain(self, what: str) -> None:
        if what != self._complained:
            log.warning("the certificate files cannot be used, going on as before", extra={"error": what})
        self._complained = what


def worse(found: tuple[x509.Certificate, ...], current: x509.Certificate | None, now: datetime) -> str:
    """Return why a chain is not to replace the one that is served; empty if it is."""
    if not found:
        return "there is no certificate in it"
    if current is not None and is_valid_at(current, now) and not is_valid_at(found[0], now):
        return "the new certificate is not valid today, and the one before is"
    return ""


def _read_callers(path: Path) -> bytes:
    # No authorities at all would stand for "everybody": a file that was cut off must not open the door.
    found = _read(path)
    if not found:
        raise CertificateError(f"{path}: is empty; it must hold the authorities of callers, PEM")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CertificateError(f"{path}: no such file; is the Secret mounted there?") from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from error
