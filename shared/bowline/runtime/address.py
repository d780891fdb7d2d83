"""A listen address: a value, and its form on the command line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A listen address. An empty host means all interfaces; port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Parse ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``. Raises ValueError with the accepted forms."""
    host, colon, port = text.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    if has_brackets:
        host = host[1:-1]
    if not colon or (":" in host) != has_brackets or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(
            f"{text!r} must be HOST:PORT, such as 127.0.0.1:8080, [::1]:8080 or :8080 for all interfaces"
        )
    return ListenAddress(host, int(port))
