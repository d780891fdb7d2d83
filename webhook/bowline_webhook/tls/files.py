"""A certificate from files that are renewed externally: a mounted Secret of cert-manager or of the operator.

The files are compared by content, because a mounted Secret changes by symbolic links and its timestamps are
unreliable. The served pair is replaced only by a usable one: a pair that does not match yet (one of two files is
written) or is not currently valid is ignored, logged once and read again later.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from bowline.runtime.clock import Clock
from bowline_webhook.tls.ca import from_pem, is_valid_at
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.serving import CertificateError, ServingContext

log = logging.getLogger(__name__)

# Small against the up to 90 s that a kubelet takes to update the files.
_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class FilePaths:
    """Paths of chain and key (neither if self-signed), and of the client CA bundle, if any."""

    certificate: Path | None = None
    private_key: Path | None = None
    client_ca: Path | None = None


class CertificateFiles:
    """Keeps a ServingContext in sync with the files."""

    def __init__(self, paths: FilePaths, metrics: CertificateMetrics, clock: Clock) -> None:
        self._paths = paths
        self._metrics = metrics
        self._clock = clock
        self._pair = b""
        self._client_ca = _read_callers(paths.client_ca) if paths.client_ca is not None else b""
        self._last_warning = ""
        self.serving = ServingContext(self._client_ca)
        self._load_pair()

    async def run(self) -> None:
        """Poll the files until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                self.reload()
                self._last_warning = ""
            except CertificateError as error:
                self._warn_once(str(error))

    def reload(self) -> None:
        """Apply the files' current content. Raises CertificateError if it is unusable; the previous one stays in
        use.
        """
        try:
            self._load_callers()
        finally:  # an error in the client CA file must not block a renewed certificate
            self._load_pair()

    def _load_callers(self) -> None:
        if self._paths.client_ca is None:
            return
        client_ca = _read_callers(self._paths.client_ca)
        if client_ca != self._client_ca:
            self.serving.set_client_ca(client_ca)
            self._client_ca = client_ca
            log.info("the CAs of clients have changed")

    def _load_pair(self) -> None:
        certificate, key = self._paths.certificate, self._paths.private_key
        if certificate is None or key is None:
            return
        pem = _read(certificate) + b"\n" + _read(key)
        if pem == self._pair:
            return
        try:
            refusal = rejection_reason(from_pem(pem), self.serving.certificate, self._clock.now())
            if refusal:
                raise CertificateError(refusal)  # noqa: TRY301 - one place names the files
            self.serving.swap(pem)
        except CertificateError as error:
            raise CertificateError(f"{certificate} and {key}: {error}") from error
        if self._pair:
            self._metrics.leaf_renewals.inc()
            log.info("serving the renewed certificate")
        self._pair = pem

    def _warn_once(self, error: str) -> None:
        if error != self._last_warning:
            log.warning(
                "the certificate files cannot be used, the previous certificate stays", extra={"error": error}
            )
        self._last_warning = error


def rejection_reason(chain: tuple[x509.Certificate, ...], current: x509.Certificate | None, now: datetime) -> str:
    """Return why a chain must not replace the one being served; empty if it may."""
    if not chain:
        return "there is no certificate in it"
    if current is not None and is_valid_at(current, now) and not is_valid_at(chain[0], now):
        return "the new certificate is not valid today, and the one before is"
    return ""


def _read_callers(path: Path) -> bytes:
    # An empty bundle would disable client authentication: a truncated file must not do that.
    chain = _read(path)
    if not chain:
        raise CertificateError(f"{path}: is empty; it must hold the CAs of clients, PEM")
    return chain


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CertificateError(f"{path}: no such file; is the Secret mounted there?") from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from error
