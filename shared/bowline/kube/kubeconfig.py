"""Credentials of a kubeconfig file, loaded by the ``kubernetes`` package.

The package's loader runs again whenever credentials may have changed: a token file is rotated, an exec plugin's token
expires. It reports most errors of a file as arbitrary exceptions; here they become one ``CredentialsError`` that
names the file.
"""

import importlib
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from bowline.kube.errors import CredentialsError
from bowline.runtime.clock import Clock

# Reload interval for rotated token files; the package itself renews exec tokens five minutes before they expire.
RELOAD_AFTER_S = 60.0
REMEDY = "pass a valid file with --kubeconfig, or set KUBECONFIG"


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The cluster of the kubeconfig's current context."""

    server: str
    authority: str | None
    verify: bool
    server_name: str | None
    proxy: str | None


class KubeconfigCredentials:
    """Credentials of the current context's user. Call ``load`` first."""

    def __init__(self, paths: list[Path], clock: Clock) -> None:
        self.where = os.pathsep.join(map(str, paths))
        self._paths = paths
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._certificate: tuple[str, str | None] | None = None
        self._context: ssl.SSLContext | None = None
        self._loader: Any = None
        self._runs_plugin = False
        self._reload_at = 0.0
        # The files' content when they were loaded, and the result.
        self._content: tuple[bytes, ...] = ()
        self._kubeconfig: ClusterEntry | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def due(self) -> bool:
        return self._clock.monotonic() >= self._reload_at

    async def load(self) -> ClusterEntry:
        """Read the files. Raises CredentialsError."""
        check_files(self._paths)
        content = self._read()
        config = _package("kubernetes.aio.client").Configuration()
        try:
            self._loader = await self._new_loader(config)
        except Exception as error:
            raise CredentialsError(f"{self.where}: {_reason(error)}; {REMEDY}") from error
        server = urlsplit(config.host)
        if server.scheme not in ("http", "https") or not server.hostname:
            raise CredentialsError(f"{self.where}: server {config.host!r} must be an http or https URL; {REMEDY}")
        self._take(config)
        self._runs_plugin = _has_plugin(content, self._loader.current_context["context"].get("user"))
        self._content = content
        self._kubeconfig = ClusterEntry(
            server=config.host.rstrip("/"),
            authority=config.ssl_ca_cert,
            verify=config.verify_ssl,
            server_name=config.tls_server_name,
            proxy=config.proxy,
        )
        return self._kubeconfig

    async def reread(self) -> ClusterEntry:
        """Return the files' current content; loads them only if it has changed. Raises CredentialsError.

        A new server, server name or proxy takes effect only in a new process.
        """
        if self._kubeconfig is None or self._read() != self._content:
            return await self.load()
        return self._kubeconfig

    def _read(self) -> tuple[bytes, ...]:
        try:
            return tuple(path.read_bytes() for path in self._paths if path.exists())
        except OSError as error:
            raise CredentialsError(f"{self.where}: cannot be read ({error}); {REMEDY}") from error

    def load_client_cert(self, context: ssl.SSLContext) -> None:
        """Load the client certificate, if there is one, into the context, now and after each renewal."""
        self._context = context
        if self._certificate is not None:
            context.load_cert_chain(*self._certificate)

    async def refresh(self, *, is_rejected: bool = False) -> bool:
        """Load again. Raises CredentialsError and keeps the present credentials: the API server may still accept
        them.
        """
        if not (is_rejected or self.due):
            return False
        if self._runs_plugin and not is_rejected and not hasattr(self._loader, "exec_plugin_expiry"):
            # By the exec plugin contract, a plugin that gives no expiry is run again only after its credentials are
            # rejected.
            self._reload_at = float("inf")
            return False
        config = _package("kubernetes.aio.client").Configuration()
        before = self._headers, self._certificate
        try:
            if is_rejected:
                # A loader runs an exec plugin again only after the expiry that the plugin gave; a new one always.
                self._loader = await self._new_loader(config)
            else:
                await self._loader.load_and_set(config)
            self._take(config)
            if self._context is not None:
                self.load_client_cert(self._context)
        except Exception as error:
            self._reload_at = self._clock.monotonic() + RELOAD_AFTER_S
            raise CredentialsError(f"{self.where}: {_reason(error)}; {REMEDY}") from error
        return before != (self._headers, self._certificate)

    async def _new_loader(self, config: Any) -> Any:
        return await _package("kubernetes.aio.config").load_kube_config(
            config_file=self.where, client_configuration=config, persist_config=False
        )

    def _take(self, config: Any) -> None:
        token = config.api_key.get("BearerToken", "").strip()
        self._certificate = (config.cert_file, config.key_file) if config.cert_file else None
        if not token and not self._certificate and config.host.startswith("https:"):
            # The loader logs the failure of an exec plugin and continues unauthenticated.
            message = "gives no token and no client certificate for its current context's user"
            raise CredentialsError(f"{self.where}: {message}; {REMEDY}")
        self._headers = {"Authorization": token} if token else {}
        self._reload_at = self._clock.monotonic() + RELOAD_AFTER_S


def check_files(paths: list[Path]) -> None:
    """Raise CredentialsError for files that the loader would report badly. Missing files of several are ignored."""
    present = [path for path in paths if path.exists()]
    if not present:
        raise CredentialsError(f"{os.pathsep.join(map(str, paths))}: does not exist; {REMEDY}")
    for path in present:
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{path}: cannot be read ({error}); {REMEDY}") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" at line {mark.line + 1}" if mark is not None else ""
            raise CredentialsError(f"{path}: is not YAML{line}; {REMEDY}") from error
        if not isinstance(document, dict):
            raise CredentialsError(f"{path}: is no kubeconfig: it must hold a mapping; {REMEDY}")


def _has_plugin(contents: Iterable[bytes], user: str | None) -> bool:
    """Return whether an exec plugin gives the user's credentials. Of several files the first with the user counts."""
    users = [entry for content in contents for entry in (yaml.safe_load(content) or {}).get("users") or ()]
    return "exec" in next(((entry.get("user") or {}) for entry in users if entry["name"] == user), {})


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("Invalid kube-config file. ").strip()
    return f"is not usable ({text or type(error).__name__})"


def _package(name: str) -> Any:
    """Import a module of the `kubernetes` package. Raises CredentialsError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CredentialsError(
            f"a kubeconfig needs the Python package `kubernetes`, which is not installed ({error}): run in a pod with"
            " a ServiceAccount, or `pip install kubernetes`"
        ) from error
