"""The listener: AdmissionReviews over HTTPS.

aiohttp reads and writes HTTP; ``bowline.runtime.http_server`` bounds the connections,
``bowline_webhook.bodies`` the bodies, and ``bowline_webhook.review`` reviews. This module maps requests to reviews
and verdicts to responses. A request that is not an AdmissionReview gets a 4xx status and a message. A review always
gets a response with its UID; if Bowline itself fails, the traceback is logged once, counted, and the object is
denied.

API servers keep connections open, also to a replica that is stopping. So ``close_after_response`` makes the replica
not ready and closes each connection after its next response; ``stop`` later closes the listener and lets requests in
flight finish. Until the first of them a stopping replica serves and is ready: where all pods stop together,
kube-proxy sends connections to those that stop, but only to ready ones.
"""

import logging
import ssl
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from bowline.api.field_error import FieldError
from bowline.api.gpu_operator import UNKNOWN, GpuRuntime
from bowline.api.rule import DenialCause, Rule
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict
from bowline.framework.config import AdmissionMode
from bowline.runtime.address import ListenAddress
from bowline.runtime.http_server import Answer, HttpServer, ServerLimits, connection_of
from bowline_webhook.bodies import MAX_BODY, MAX_TIMEOUT_S, BadRequestError, Bodies, too_large
from bowline_webhook.hooks import Hook, Review
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.review import (
    MalformedReviewError,
    decode_review,
    display_name,
    encode_answer,
    review_object,
)

INTERNAL: Final = Rule(
    "admission/internal", "the webhook itself failed while it reviewed the object", cause=DenialCause.INTERNAL
)

RULES: Final = (INTERNAL,)


log = logging.getLogger(__name__)

# Enough for several API servers: each keeps about 25 idle connections and opens more in a burst. API servers close an
# idle connection after 90 s; this limit must be longer, or a request could arrive on a connection being closed.
LIMITS: Final = ServerLimits(connections=512, handshakes=128, idle_s=180.0)
_JSON: Final = "application/json"
_ROUTES: Final[Mapping[str, Hook]] = {hook.value: hook for hook in Hook}
_PATHS: Final = ", ".join(_ROUTES)
_FIELDS: Final[Mapping[int, str]] = {
    405: "Allow: POST\r\n",
    # A review takes about a millisecond; a burst has ended by then.
    429: "Retry-After: 1\r\n",
}
# Denials logged in a second; any caller can cause some, unless client certificates are required.
_LOGGED_DENIALS: Final = 50
# Kubernetes' own limits for a UID, a kind, a namespace and a name; callers may send longer ones.
_LONGEST: Final[Mapping[str, int]] = {"uid": 64, "kind": 64, "namespace": 63, "object": 253}


@dataclass(frozen=True, slots=True)
class ReviewedCall:
    """A call of a plugin, and the object that it reviews. ``fields``: of a log line."""

    plugin: str
    point: str
    fields: Mapping[str, str]


class AdmissionServer:
    """Answers reviews with the verdicts of one chain.

    - ``gpu_runtime``: returns what is known of the cluster; called for every review.
    - ``stored_errors``: returns errors that depend on what is stored; called for each object without others.
    - ``allowed_names``: client certificates must have one of these names; empty: no check.
    - ``mode``: Enforce denies, Warn turns denials into warnings, Off allows everything.
    """

    def __init__(
        self,
        listen: ListenAddress,
        context: ssl.SSLContext,
        chain: AdmissionChain,
        metrics: WebhookMetrics,
        *,
        mode: AdmissionMode = "Enforce",
        gpu_runtime: Callable[[], GpuRuntime] = lambda: UNKNOWN,
        stored_errors: Callable[[Hook, Review], tuple[FieldError, ...]] = lambda *_: (),
        allowed_names: Collection[str] = (),
    ) -> None:
        self._listen = listen
        self._context = context
        self._chain = chain
        self._metrics = metrics
        self._mode = mode
        self._gpu_runtime = gpu_runtime
        self._stored_errors = stored_errors
        self._allowed_names = frozenset(allowed_names)
        self._bodies = Bodies()
        self._server: HttpServer | None = None
        self._closing = False
        self._reviewing: Review | None = None
        # Of the present second: the denials that were logged, and those that were not.
        self._log_second = self._logged_denials = self._omitted_denials = 0
        metrics.in_flight.set_function(lambda: self._server.in_flight if self._server is not None else 0)
        self.address = listen

    def current_call(self, _: AbstractEventLoop) -> ReviewedCall | None:
        """Return the plugin's call that the event loop is executing. May be called from another thread."""
        call, review = self._chain.current_call, self._reviewing
        return ReviewedCall(call.plugin, call.point, _about(review)) if call is not None and review else None

    def not_ready_reason(self) -> str | None:
        """Return the not-ready reason; None if ready."""
        if self._closing:
            return "stopping"
        return None if self._server is not None else "not listening yet"

    async def start(self) -> None:
        """Listen; ``address`` then has the actual port. Raises OSError if the address cannot be used."""
        server = HttpServer(self._respond, LIMITS, self._on_error, self._admits if self._allowed_names else None)
        port = await server.listen(self._listen, self._context)
        self._server = server
        self.address = ListenAddress(self._listen.host, port)
        log.info("answering reviews", extra={"address": str(self.address)})

    def close_after_response(self) -> None:
        """Mark not ready, and close each connection after its next response."""
        self._closing = True

    async def stop(self) -> None:
        """Close the listener, wait for requests in flight up to the longest webhook timeout, close the rest."""
        if self._server is None:
            return
        self.close_after_response()
        server = self._server
        await server.stop(MAX_TIMEOUT_S)
        self._server = None

    async def _respond(self, request: web.BaseRequest) -> Answer:
        try:
            hook = _hook_of(request)
            connection = connection_of(request)
            if request.headers.get("Expect", "").lower() == "100-continue":
                await connection.send_continue(request)
            body = await self._bodies.read(request, connection)
            review = decode_review(body)
            answer = Answer(self._review(hook, review, connection.peer), content_type=_JSON)
        except (BadRequestError, MalformedReviewError) as error:
            self._metrics.bad_requests.labels(code=str(error.code)).inc()
            answer = Answer(f"{error}\n".encode(), error.code, fields=_FIELDS.get(error.code, ""))
        if self._closing:
            answer.force_close()
        return answer

    def _admits(self, certificate: Mapping[str, Any]) -> bool:
        """Return whether a client certificate has one of the allowed names: its common name, or a DNS name."""
        names = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        names |= {value for key, value in certificate.get("subjectAltName", ()) if key == "DNS"}
        return not names.isdisjoint(self._allowed_names)

    def _on_error(self, status: int, error: BaseException | None) -> None:
        """Count a request that failed outside of the handler's own responses; log the error of a 5xx."""
        self._metrics.bad_requests.labels(code=str(status)).inc()
        if status >= 500:
            log.error("a request failed", exc_info=error)

    def _review(self, hook: Hook, review: Review, peer: str) -> bytes:
        """Return the response to a review."""
        started_at = time.perf_counter()
        try:
            verdict = ALLOWED
            if self._mode != "Off":
                self._reviewing = review
                verdict = review_object(hook, review, self._chain, self._gpu_runtime())
                stored_errors = () if verdict.errors else self._stored_errors(hook, review)
                if stored_errors:
                    verdict = replace(verdict, errors=stored_errors)
            verdict = self._apply_mode(hook, review, verdict, peer)
            answer = encode_answer(review, verdict, self._chain.settings.docs_url)
        except Exception:
            log.exception("review failed", extra={"hook": str(hook), **_about(review)})
            self._metrics.crashes.labels(hook=hook).inc()
            verdict = self._apply_mode(hook, review, _FAILED, peer)
            answer = encode_answer(review, verdict, self._chain.settings.docs_url)
        self._reviewing = None
        self._metrics.observe_answer(hook, time.perf_counter() - started_at, allowed=verdict.allowed)
        if verdict.errors and self._may_log():
            log.info("denied", extra={"peer": peer, **_log_fields(hook, review, verdict)})
        return answer

    def _may_log(self) -> bool:
        """Count a denial; True for the first ``_LOGGED_DENIALS`` of a second."""
        second = int(time.monotonic())
        if second != self._log_second:
            if self._omitted_denials:
                log.warning("denials are not logged one by one", extra={"omitted": self._omitted_denials})
            self._log_second, self._logged_denials, self._omitted_denials = second, 0, 0
        if self._logged_denials >= _LOGGED_DENIALS:
            self._omitted_denials += 1
            return False
        self._logged_denials += 1
        return True

    def _apply_mode(self, hook: Hook, review: Review, verdict: Verdict, peer: str) -> Verdict:
        """Apply the admission mode: in Warn, errors become warnings."""
        if self._mode != "Warn" or verdict.allowed:
            return verdict
        self._metrics.not_enforced.labels(hook=hook).inc()
        if self._may_log():
            log.info("not denied: admission.mode is Warn", extra={"peer": peer, **_log_fields(hook, review, verdict)})
        return verdict.as_warnings()


_FAILED: Final = Verdict(
    (
        FieldError(
            INTERNAL,
            "",
            None,
            "Bowline failed while reviewing this object; ask the cluster's operator to read the webhook's log",
        ),
    )
)


def _hook_of(request: web.BaseRequest) -> Hook:
    # The raw path: no caller escapes its letters.
    hook = _ROUTES.get(request.raw_path.partition("?")[0])
    if hook is None:
        raise BadRequestError(404, f"this path is not served; reviews are answered at {_PATHS}")
    if request.method != "POST":
        raise BadRequestError(405, "a review is sent by POST")
    headers = request.headers
    if headers.get("Content-Type") != _JSON and request.content_type != _JSON:  # it may have parameters
        raise BadRequestError(415, "the content type must be application/json")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequestError(415, "the body must not be compressed; send it without a Content-Encoding")
    if (request.content_length or 0) > MAX_BODY:
        raise too_large()
    return hook


def _log_fields(hook: Hook, review: Review, verdict: Verdict) -> dict[str, object]:
    rules = sorted({error.rule.id for error in verdict.errors})
    return {"hook": str(hook), "rules": rules, **_about(review)}


def _about(review: Review) -> dict[str, str]:
    """Return the log fields that identify an object, each cut to the API server's own limit."""
    name = review.name or display_name(review.object)
    about = {"uid": review.uid, "kind": review.kind, "namespace": review.namespace, "object": name}
    return {key: text[: _LONGEST[key]] for key, text in about.items()}
