"""Where the API server is and who the user is: from kubeconfig files as kubectl reads them, or from a pod's account.

It reads what client-go reads for one call: several files merged, tokens, token files, client certificates, exec
plugins, basic authentication, impersonation, the proxy of the environment, and the ID token of `auth-provider: oidc`
(which is not refreshed). Nothing is written. Each file is read once, because it may be a pipe. The package
`kubernetes` is not used: its import alone takes longer than a whole command, and the image lacks it.
"""

import base64
import binascii
import json
import os
import re
import ssl
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment

import yaml

REMEDY = "pass a valid file with --kubeconfig, or set KUBECONFIG"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A plugin may ask its user to log in.
EXEC_TIMEOUT_S = 300
# What the name of a header may have beside letters and digits, and its value may not.
_HEADER_CHARACTERS, _CONTROL = "!#$&'*+-.^_`|~", re.compile(r"[\x00-\x1f\x7f]")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """An API server, and the user's identity.

    - ``server``: the URL without a trailing slash.
    - ``namespace``: that of the context or of the pod.
    - ``headers``: authentication of each request; ``impersonation``: further headers, some of them several times.
    - ``tls``: with the client certificate, if the user has one; None: plain HTTP.
    - ``server_name``: in the server's certificate; empty: the host of the URL.
    - ``proxy``: URL of an HTTP proxy, with the user's credentials for it; empty: none.
    """

    server: str
    namespace: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = field(default="", repr=False)
    impersonation: Sequence[tuple[str, str]] = ()


class _UnusableError(Exception):
    """Why the files cannot be used."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster, user or context, and the folder of its file, to which paths are relative."""

    content: Mapping[str, Any]
    folder: Path

    def text(self, key: str) -> str:
        """Return a field as text; empty if it is absent."""
        value = self.content.get(key)
        return "" if value is None else str(value)

    def data(self, name: str) -> bytes:
        """Return a field that is given as ``name-data`` in base64 or as the path ``name``; empty without one."""
        try:
            if self.content.get(f"{name}-data"):
                return base64.b64decode(self.text(f"{name}-data"), validate=True)
            return (self.folder / self.text(name)).read_bytes() if self.content.get(name) else b""
        except (OSError, binascii.Error) as error:
            raise _UnusableError(f"{name}: {error}") from error


def load_kubeconfig(paths: Sequence[Path], context: str | None) -> ServerAccess:
    """Return the access of a context, None is the current one. Raises ClusterError, which names file and remedy.

    Of several files, the first one that has an entry counts, and missing ones are ignored.
    """
    where = os.pathsep.join(map(str, paths))
    documents = [(path, document) for path in paths if (document := _read(path)) is not None]
    if not documents:
        raise ClusterError(f"{where}: does not exist; {REMEDY}")
    try:
        return _access(documents, context)
    except _UnusableError as error:
        raise ClusterError(f"{where}: is not usable ({error}); {REMEDY}") from error


def _access(documents: Sequence[tuple[Path, Mapping[str, Any]]], context: str | None) -> ServerAccess:
    currents = (document.get("current-context") for _, document in documents)
    name = context or next((str(current) for current in currents if current), "")
    entry = _entry(documents, "context", name)
    cluster = _entry(documents, "cluster", entry.text("cluster"))
    user = _entry(documents, "user", entry.text("user")) if entry.content.get("user") else _Entry({}, Path())
    server = cluster.text("server").rstrip("/")
    if not _is_url(server, "https", "http"):
        raise _UnusableError(f"server {server!r} must be an http or https URL")
    proxy = cluster.text("proxy-url") or environment_proxy(server)
    if proxy and not _is_url(proxy, "http"):  # it may have a password
        name = "proxy-url" if cluster.text("proxy-url") else "the proxy of the environment"
        raise _UnusableError(f"{name} must be an http URL, such as http://proxy:3128")
    (headers, certificate), tls = _credentials(user, cluster), None
    if server.startswith("https:"):
        if not headers and certificate is None:
            raise _UnusableError("it gives no token and no client certificate for the context's user")
        try:
            is_insecure = cluster.content.get("insecure-skip-tls-verify") is True
            tls = _tls(cluster.data("certificate-authority"), certificate, is_insecure=is_insecure)
        except (ssl.SSLError, ValueError) as error:
            raise _UnusableError(f"its certificates cannot be used: {error}") from error
    impersonation = _impersonation(user)
    for header, value in (*headers.items(), *impersonation):
        if _CONTROL.search(value):
            raise _UnusableError(f"{header} would have control characters")
    namespace, server_name = entry.text("namespace") or "default", cluster.text("tls-server-name")
    return ServerAccess(server, namespace, headers, tls, server_name, proxy, impersonation)


def _is_url(text: str, *schemes: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and url.port != 0
    except ValueError:  # of a port that is no number
        return False


def environment_proxy(server: str) -> str:
    """Return the proxy of the environment for a server, as kubectl has it: HTTPS_PROXY, unless NO_PROXY has its host
    or network. Servers of this machine have none.
    """
    url, proxies = urlsplit(server), getproxies_environment()
    host, proxy = url.hostname or "", proxies.get(url.scheme, "")
    exceptions = ("localhost", "127.0.0.0/8", "::1", *map(str.strip, proxies.get("no", "").split(",")))
    if not proxy or any(_is_exception(host, exception) for exception in exceptions):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_exception(host: str, exception: str) -> bool:
    """Return whether an entry of NO_PROXY has a host: as ``*``, a domain, an address, or a network."""
    domain = exception.lower().lstrip(".")
    if exception == "*" or (domain and f".{host}".endswith(f".{domain}")):
        return True
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:  # of names
        return False


def load_service_account(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> ServerAccess:
    """Return the access of the pod's ServiceAccount. Raises ClusterError."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        token, namespace = ((folder / name).read_text("ascii").strip() for name in ("token", "namespace"))
        tls = _tls((folder / "ca.crt").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ClusterError(f"{folder}: is not usable ({error}); mount the pod's ServiceAccount token") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ServerAccess(server, namespace, {"Authorization": f"Bearer {token}"}, tls)


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        document = yaml.load(path.read_bytes(), _LOADER)  # noqa: S506 - both loaders are safe
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: cannot be read ({error}); {REMEDY}") from error
    except (yaml.YAMLError, LookupError, AttributeError, ValueError) as error:  # of values that a tag does not allow
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        raise ClusterError(f"{path}: is not YAML{line}; {REMEDY}") from error
    if not isinstance(document, dict):
        raise ClusterError(f"{path}: is no kubeconfig: it must hold a mapping; {REMEDY}")
    return document


def _entry(documents: Sequence[tuple[Path, Mapping[str, Any]]], kind: str, name: str) -> _Entry:
    entries = [
        (path, entry)
        for path, document in documents
        for entry in (document.get(f"{kind}s") if isinstance(document.get(f"{kind}s"), list) else None) or ()
        if isinstance(entry, dict)
    ]
    for path, entry in entries:
        if entry.get("name") == name and isinstance(entry.get(kind), dict):
            return _Entry(entry[kind], path.parent)
    existing = ", ".join(dict.fromkeys(str(entry.get("name")) for _, entry in entries)) or "none"
    raise _UnusableError(f"there is no {kind} {name!r}; there are: {existing}" if name else f"no {kind} is selected")


_Certificate = tuple[bytes, bytes]


def _credentials(user: _Entry, cluster: _Entry) -> tuple[Mapping[str, str], _Certificate | None]:
    """Return the headers and the client certificate of a user."""
    certificate = (user.data("client-certificate"), user.data("client-key"))
    token = user.text("token")
    if user.content.get("tokenFile"):
        token = user.data("tokenFile").decode("utf-8", "replace").strip()
    provider = user.content.get("auth-provider")
    if not token and isinstance(provider, dict):
        token = str((provider.get("config") or {}).get("id-token") or "")
    if not token and isinstance(user.content.get("exec"), dict):
        token, plugin_certificate = _run_plugin(user, cluster)
        certificate = certificate if certificate[0] else plugin_certificate
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if not headers and user.content.get("username"):
        basic = f"{user.text('username')}:{user.text('password')}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(basic).decode()}"}
    return headers, certificate if certificate[0] else None


def _impersonation(user: _Entry) -> Sequence[tuple[str, str]]:
    """Return the headers of the user as whom the requests are sent; none without one."""
    groups, extra = user.content.get("as-groups") or [], user.content.get("as-user-extra") or {}
    lists = [groups, *(extra.values() if isinstance(extra, dict) else [None])]
    if not all(isinstance(values, list) for values in lists):
        raise _UnusableError("as-groups must be a list, and as-user-extra an object of lists")
    headers = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    headers += [("Impersonate-Group", str(group)) for group in groups]
    headers += [
        (f"Impersonate-Extra-{quote(str(key), safe=_HEADER_CHARACTERS)}", str(value))
        for key, values in extra.items()
        for value in values
    ]
    headers = [header for header in headers if header[1]]
    if headers and not user.text("as"):
        raise _UnusableError("as-uid, as-groups and as-user-extra require a user in `as`")
    return tuple(headers)


def _run_plugin(user: _Entry, cluster: _Entry) -> tuple[str, _Certificate]:
    """Run an exec plugin; return its token and its client certificate, each empty if it gives none."""
    plugin: Mapping[str, Any] = user.content["exec"]
    version = str(plugin.get("apiVersion") or "")
    if version not in _EXEC_VERSIONS:
        raise _UnusableError(f"exec: apiVersion {version!r} is none of {', '.join(_EXEC_VERSIONS)}")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {"server": cluster.text("server")}
        authority = cluster.data("certificate-authority")
        if authority:
            spec["cluster"]["certificate-authority-data"] = base64.b64encode(authority).decode()
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    added = {str(entry.get("name")): str(entry.get("value")) for entry in plugin.get("env") or ()}
    command = str(plugin.get("command") or "")
    if "/" in command:
        command = str(user.folder / command)
    arguments = [command, *map(str, plugin.get("args") or ())]
    environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": info}
    try:
        result = subprocess.run(
            arguments, env=environment, stdout=subprocess.PIPE, check=True, timeout=EXEC_TIMEOUT_S
        )
        status = json.loads(result.stdout)["status"]
        certificate = (status.get("clientCertificateData") or "", status.get("clientKeyData") or "")
        return str(status.get("token") or ""), (certificate[0].encode(), certificate[1].encode())
    except FileNotFoundError as error:
        hint = f"; {plugin['installHint']}" if plugin.get("installHint") else ""
        raise _UnusableError(f"exec: {command} does not exist{hint}") from error
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise _UnusableError(f"exec: {command} gives no credentials: {error}") from error


def _tls(authority: bytes, certificate: _Certificate | None, *, is_insecure: bool = False) -> ssl.SSLContext:
    """Return a context that trusts the authorities; without any those of the system."""
    context = ssl.create_default_context(cadata=authority.decode("utf-8") if authority else None)
    if is_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        # The ssl module reads certificates only from files.
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("certificate", "key")]
            for file, content in zip(files, certificate, strict=True):
                file.touch(0o600)
                file.write_bytes(content)
            context.load_cert_chain(files[0], files[1])
    return context
