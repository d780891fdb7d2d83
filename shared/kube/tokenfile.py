"""A bearer token in a file that is rotated externally, for example by the kubelet."""

from collections.abc import Mapping
from pathlib import Path

from shared.kube.errors import CredentialsError
from shared.runtime.clock import Clock

# The kubelet rotates at 80 % of a token's lifetime, which is at least ten minutes: a minute is early enough.
REREAD_AFTER_S = 60.0


class TokenFileCredentials:
    """Credentials of a pod's ServiceAccount."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._read()

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def due(self) -> bool:
        return self._clock.monotonic() >= self._reread_at

    async def refresh(self, *, rejected: bool = False) -> bool:
        """Read the file again if it is due or the token was rejected; return whether the token has changed."""
        return self._read() if rejected or self.due else False

    def _read(self) -> bool:
        self._reread_at = self._clock.monotonic() + REREAD_AFTER_S
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self._path}: cannot be read ({error}); mount the pod's token") from error
        if not token:
            raise CredentialsError(f"{self._path}: is empty; mount the pod's ServiceAccount token")
        before, self._headers = self._headers, {"Authorization": f"Bearer {token}"}
        return before != self._headers
