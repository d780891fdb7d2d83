"""The API server of a kubeconfig, by the `kubernetes` package."""

from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from urllib3.exceptions import HTTPError

from bowline.kube.kubeconfig import REMEDY
from bowline_cli.api import REQUEST_TIMEOUT_S, ApiAnswer, ClusterError, unreachable


class KubeconfigApi:
    """A client of the context's API server. Raises ClusterError if the files are not usable."""

    def __init__(self, files: str, context: str | None) -> None:
        """``files``: as in KUBECONFIG. ``context``: None is the current one."""
        configuration = Configuration()
        configuration.retries = False  # the library logs each retry on standard error
        try:
            config.load_kube_config(files, context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except Exception as error:  # the package raises arbitrary exceptions for what a file contains
            cause = str(error).removeprefix("Invalid kube-config file. ").strip() or type(error).__name__
            raise ClusterError(f"{files}: is not usable ({cause}); {REMEDY}") from error
        if configuration.host.startswith("https:") and not (configuration.api_key or configuration.cert_file):
            # The package logs the failure of an exec plugin and continues unauthenticated.
            raise ClusterError(f"{files}: gives no token and no client certificate for the context's user; {REMEDY}")
        self._client = ApiClient(configuration)
        self.server: str = configuration.host

    def send(self, method: str, path: str, body: object) -> ApiAnswer:
        """Send a request.

        The package's own API classes take up to a second to import, and convert objects of other versions lossily.
        """
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        request = self._client.param_serialize(method, path, {}, [], headers, body, auth_settings=["BearerToken"])
        try:
            response = self._client.call_api(*request, _request_timeout=REQUEST_TIMEOUT_S)
            content = response.read()  # type: ignore[no-untyped-call]
        except HTTPError as error:
            raise unreachable(self.server, error) from error
        return ApiAnswer(response.status, response.headers, content)


def namespace_of_context(files: str, name: str | None) -> str:
    """Return the namespace of the context, else ``default``."""
    contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
    contexts = [context for context in contexts if context["name"] == name] or [current]
    return str(contexts[0]["context"].get("namespace") or "default")
