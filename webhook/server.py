"""The listener: HTTPS around ``webhook.review``.

Knows what is answered and nothing of what is judged; how HTTP is read and written is the matter of
``webhook.exchange``. Every request gets an answer below 500: 4xx in plain words for what is no AdmissionReview, a
review's answer with its UID for everything else, also when judging it failed.

API servers keep connections open, also to a replica that is going away, so stopping has three parts: ``leave`` says
that no new ones should come, ``close_connections`` makes every answer close its own while requests are still served,
``stop`` closes the listener and what is idle and lets the rest finish.

More requests at a time than the limit are answered 429 with Retry-After, before their body is read: an API server
sends them again after that time, within the webhook's own timeout, and only then treats them as failed.
"""

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

from shared.api.duration import parse_duration
from shared.api.field_error import FieldError
from shared.framework.admission import ALLOWED, AdmissionChain, Judgement
from shared.framework.config import AdmissionMode
from shared.runtime.probes import ListenAddress
from shared.runtime.tracing import Tracer
from webhook.connections import FINISH_S, Connections
from webhook.hooks import Hook, Review
from webhook.http import Answer, Head
from webhook.metrics import WebhookMetrics
from webhook.review import Facts, MalformedReviewError, decode_review, display_name, encode_answer, judge
from webhook.tracing import traced

log = logging.getLogger(__name__)

# At most two objects of 3 MB and 1 MB around them: the same bound as controller-runtime's.
MAX_BODY: Final = 7 * 1024 * 1024
# Kubernetes' own bounds of a webhook's timeout.
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = FINISH_S
_JSON: Final = "application/json"
_HOOKS: Final[Mapping[str, Hook]] = {hook.value: hook for hook in Hook}
_PATHS: Final = ", ".join(_HOOKS)
_HEADERS: Final[Mapping[int, str]] = {
    405: "Allow: POST\r\n",
    # Judging takes a millisecond, a burst is over by then.
    429: "Retry-After: 1\r\n",
}


class BadRequestError(Exception):
    """A request that is answered by an HTTP status and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class AdmissionServer:
    """Answers reviews with the verdicts of one chain."""

    def __init__(
        self,
        listen: ListenAddress,
        context: ssl.SSLContext,
        chain: AdmissionChain,
        metrics: WebhookMetrics,
        max_in_flight: int,
        tracer: Tracer | None = None,
        mode: AdmissionMode = "Enforce",
    ) -> None:
        self._listen = listen
        self._context = context
        self._chain = chain
        self._metrics = metrics
        self._tracer = tracer
        self._mode = mode
        self._connections: Connections | None = None
        self._max_in_flight = max_in_flight
        # What is known of the cluster; whoever looks at it puts himself here.
        self.facts: Callable[[], Facts] = Facts
        self._leaving = False
        self.closing = False
        self.max_body = MAX_BODY
        self._under_way = 0
        metrics.under_way.set_function(lambda: self._under_way)
        self.address = listen

    def missing(self) -> str | None:
        """Return why no calls should come here; None when they should."""
        if self._leaving:
            return "stopping"
        return None if self._connections is not None else "not listening yet"

    async def start(self) -> None:
        """Listen; ``address`` then has the real port. Raises OSError if the address cannot be had."""
        connections = Connections(self)
        port = await connections.listen(self._listen, self._context)
        self._connections = connections
        self.address = ListenAddress(self._listen.host, port)
        log.info("answering reviews", extra={"address": str(self.address)})

    def leave(self) -> None:
        """From now on: not ready. All is served as before."""
        self._leaving = True

    def close_connections(self) -> None:
        """From now on: every answer closes its connection."""
        self._leaving = self.closing = True

    async def stop(self) -> None:
        """Close the listener, give requests under way their answer, close what is left."""
        if self._connections is None:
            return
        connections, self._connections = self._connections, None
        self.close_connections()
        await connections.stop()

    # --- what the listener's connections ask: ``webhook.http.Handler`` ---

    def begin(self, head: Head) -> Answer | None:
        """Refuse what is no review by its head, and what is one too many; None counts it in."""
        try:
            if self._under_way >= self._max_in_flight:
                raise BadRequestError(429, "too many requests at a time; send it again in a second")  # noqa: TRY301
            _hook_of(head)
        except BadRequestError as error:
            return self.refuse(error.code, str(error))
        self._under_way += 1
        return None

    def answer(self, head: Head, body: bytes) -> Answer:
        """Answer a review."""
        try:
            judged = self._judged(_HOOKS[_path_of(head)], body, head.headers.get("traceparent", ""))
            return Answer(200, _JSON, judged)
        except BadRequestError as error:
            return self.refuse(error.code, str(error))
        finally:
            self._under_way -= 1

    def cut_short(self, code: int, message: str) -> Answer:
        """Answer a request that was counted in and did not come whole."""
        self._under_way -= 1
        return self.refuse(code, message)

    def forget(self) -> None:
        """A request that was counted in has lost its caller."""
        self._under_way -= 1

    def refuse(self, code: int, message: str) -> Answer:
        """Answer with a status and a sentence."""
        self._metrics.bad_requests.labels(code=str(code)).inc()
        return Answer(code, "text/plain; charset=utf-8", f"{message}\n".encode(), _HEADERS.get(code, ""))

    def body_timeout_s(self, head: Head) -> float:
        """Return how long the caller waits at most."""
        query = parse_qs(head.target.partition("?")[2])
        return timeout_s(query.get("timeout", [""])[0])

    def _judged(self, hook: Hook, body: bytes, trace: str) -> bytes:
        began, started = datetime.now(UTC), time.perf_counter()
        try:
            review = decode_review(body)
        except MalformedReviewError as error:
            raise BadRequestError(400, str(error)) from error
        try:
            judgement = ALLOWED if self._mode == "Off" else judge(hook, review, self._chain, self.facts())
            if self._tracer is not None:
                judgement = traced(self._tracer, hook, review, judgement, (began, datetime.now(UTC), trace))
            judgement = self._enforced(hook, review, judgement)
            answer = encode_answer(review, judgement)
        except Exception:
            log.exception("judging failed", extra={"hook": str(hook), **_about(review)})
            self._metrics.crashes.labels(hook=hook).inc()
            judgement = _FAILED
            judgement = self._enforced(hook, review, judgement)
            answer = encode_answer(review, judgement)
        self._metrics.answered(hook, time.perf_counter() - started, allowed=judgement.allowed)
        if judgement.errors:
            rules = sorted({fault.rule for fault in judgement.errors})
            log.info("refused", extra={"hook": str(hook), "rules": rules, **_about(review)})
        return answer

    def _enforced(self, hook: Hook, review: Review, judgement: Judgement) -> Judgement:
        """Return what is answered: in the mode Warn no denial."""
        if self._mode != "Warn" or judgement.allowed:
            return judgement
        self._metrics.not_enforced.labels(hook=hook).inc()
        rules = sorted({fault.rule for fault in judgement.errors})
        log.info("not denied: admission.mode is Warn", extra={"hook": str(hook), "rules": rules, **_about(review)})
        return judgement.as_warnings()


_FAILED = Judgement(
    (
        FieldError(
            "admission/internal",
            "",
            None,
            "Bowline failed while judging this object; ask the cluster's operator to look at the webhook's log",
        ),
    )
)


def _path_of(head: Head) -> str:
    # As it was sent: no caller escapes letters, and taking a URL apart costs more than all that is asked here.
    return head.target.partition("?")[0]


def _hook_of(head: Head) -> Hook:
    hook = _HOOKS.get(_path_of(head))
    if hook is None:
        raise BadRequestError(404, f"there is nothing here; reviews are answered at {_PATHS}")
    if head.method != "POST":
        raise BadRequestError(405, "a review is sent by POST")
    media = head.headers.get("content-type", "")
    if media != _JSON and media.partition(";")[0].strip().lower() != _JSON:  # with parameters, say
        raise BadRequestError(415, "the content type must be application/json")
    if head.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadRequestError(415, "the body must not be compressed; send it without a Content-Encoding")
    if head.length > MAX_BODY:
        raise BadRequestError(413, f"the body must not be larger than {MAX_BODY} bytes")
    return hook


def timeout_s(text: str) -> float:
    """Return how long the caller waits at most, from the ``timeout`` that API servers add to the URL."""
    try:
        asked = parse_duration(text).total_seconds()
    except ValueError:
        return DEFAULT_TIMEOUT_S
    return min(asked, MAX_TIMEOUT_S) if asked > 0 else DEFAULT_TIMEOUT_S


def _about(review: Review) -> dict[str, str]:
    metadata = (review.object or {}).get("metadata")
    name = review.name or (display_name(metadata) if isinstance(metadata, dict) else "")
    return {"uid": review.uid, "kind": review.kind, "namespace": review.namespace, "object": name}
