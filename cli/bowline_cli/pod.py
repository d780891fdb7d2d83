"""The API server of the pod's cluster, by the product's own client, as the pod's ServiceAccount."""

import asyncio
import json

from bowline.kube.config import load_access
from bowline.kube.errors import InfrastructureError
from bowline.kube.messages import Request, TransportOptions
from bowline.kube.transport import HTTPTransport
from bowline_cli.api import REQUEST_TIMEOUT_S, ApiAnswer, unreachable

_JSON = "application/json"


class PodApi:
    """A client of the pod's API server. Raises CredentialsError without a ServiceAccount's files."""

    def __init__(self) -> None:
        self._access = asyncio.run(load_access())
        self.server = self._access.server

    def send(self, method: str, path: str, body: object) -> ApiAnswer:
        """Send a request over a connection of its own; a command sends few."""
        content = b"" if body is None else json.dumps(body).encode()
        return asyncio.run(self._send(Request(method, path, _JSON, content or None, _JSON if content else "")))

    async def _send(self, request: Request) -> ApiAnswer:
        connect_s, read_s = REQUEST_TIMEOUT_S
        transport = HTTPTransport(self._access, TransportOptions("bowline", read_s, connect_s, connections=1))
        await transport.open()
        try:
            answer = await transport.send(request)
        except InfrastructureError as error:
            raise unreachable(self.server, error) from error
        finally:
            await transport.close()
        return ApiAnswer(answer.code, answer.headers, answer.body)
