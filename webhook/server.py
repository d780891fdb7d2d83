"""The listener: HTTPS around ``webhook.review``.

Knows HTTP and nothing of what is judged. Every request gets an answer below 500: 4xx in plain words for what is no
AdmissionReview, a review's answer with its UID for everything else, also when judging it failed.

API servers keep connections open, also to a replica that is going away, so stopping has three parts: ``leave`` says
that no new ones should come, ``close_connections`` makes every answer close its own while requests are still served,
``stop`` closes the listener and what is idle and lets the rest finish.

More requests at a time than the limit are answered 429 with Retry-After, before their body is read: an API server
sends them again after that time, within the webhook's own timeout, and only then treats them as failed.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from shared.api.duration import parse_duration
from shared.api.field_error import FieldError
from shared.framework.admission import AdmissionChain, Judgement
from shared.runtime.probes import ListenAddress
from shared.runtime.tracing import Tracer
from webhook.metrics import WebhookMetrics
from webhook.review import (
    Facts,
    Hook,
    MalformedReviewError,
    Review,
    decode_review,
    display_name,
    encode_answer,
    judge,
)
from webhook.tracing import traced

log = logging.getLogger(__name__)

# At most two objects of 3 MB and 1 MB around them: the same bound as controller-runtime's.
MAX_BODY: Final = 7 * 1024 * 1024
# Kubernetes' own bounds of a webhook's timeout.
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 30.0
# Longer than any call may last.
_FINISH_S: Final = MAX_TIMEOUT_S
# Longer than the 90 s after which API servers close an idle connection: theirs is the side to do it, or a request
# would meet a connection that is being closed.
_KEEPALIVE_S: Final = 180.0
# How soon a request that was one too many is to come again: judging takes a millisecond, a burst is over by then.
_RETRY_AFTER_S: Final = 1
# After an answer that did not wait for the whole body: how long to read on, so that the caller sees it and no reset.
_LINGER_S: Final = 2.0
_JSON: Final = "application/json"
_HOOKS: Final[Mapping[str, Hook]] = {hook.value: hook for hook in Hook}
_PATHS: Final = ", ".join(_HOOKS)


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
    ) -> None:
        self._listen = listen
        self._context = context
        self._chain = chain
        self._metrics = metrics
        self._tracer = tracer
        self._runner: web.ServerRunner | None = None
        self._max_in_flight = max_in_flight
        # What is known of the cluster; whoever looks at it puts himself here.
        self.facts: Callable[[], Facts] = Facts
        self._leaving = False
        self._closing = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.under_way.set_function(lambda: self._under_way)
        self.address = listen

    def missing(self) -> str | None:
        """Return why no calls should come here; None when they should."""
        if self._leaving:
            return "stopping"
        return None if self._runner is not None else "not listening yet"

    async def start(self) -> None:
        """Listen; ``address`` then has the real port. Raises OSError if the address cannot be had."""
        server = web.Server(
            self._handle,
            request_factory=_request,
            access_log=None,
            lingering_time=_LINGER_S,
            keepalive_timeout=_KEEPALIVE_S,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_FINISH_S)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._listen.host or None, self._listen.port, ssl_context=self._context)
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.address = ListenAddress(self._listen.host, runner.addresses[0][1])
        log.info("answering reviews", extra={"address": str(self.address)})

    def leave(self) -> None:
        """From now on: not ready. All is served as before."""
        self._leaving = True

    def close_connections(self) -> None:
        """From now on: every answer closes its connection."""
        self._leaving = self._closing = True

    async def stop(self) -> None:
        """Close the listener, give requests under way their answer, close what is left."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self.close_connections()
        for site in list(runner.sites):
            await site.stop()
        # Before the clean-up, which would no longer read the rest of a body.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_S):
                await self._idle.wait()
        await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._respond(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        try:
            if self._under_way > self._max_in_flight:
                raise BadRequestError(429, "too many requests at a time; send it again in a second")  # noqa: TRY301
            hook = _hook_of(request)
            body = await _body_of(request)
            answer = self._answer(hook, body, request.headers.get("traceparent", ""))
            response = web.Response(body=answer, content_type=_JSON)
        except BadRequestError as error:
            self._metrics.bad_requests.labels(code=str(error.code)).inc()
            response = web.Response(status=error.code, text=f"{error}\n")
            if error.code == 429:
                response.headers["Retry-After"] = str(_RETRY_AFTER_S)
        response.headers["Server"] = "bowline"
        if self._closing:
            response.force_close()
        return response

    def _answer(self, hook: Hook, body: bytes, trace: str) -> bytes:
        began, started = datetime.now(UTC), time.perf_counter()
        try:
            review = decode_review(body)
        except MalformedReviewError as error:
            raise BadRequestError(400, str(error)) from error
        try:
            judgement = judge(hook, review, self._chain, self.facts())
            if self._tracer is not None:
                judgement = traced(self._tracer, hook, review, judgement, (began, datetime.now(UTC), trace))
            answer = encode_answer(review, judgement)
        except Exception:
            log.exception("judging failed", extra={"hook": str(hook), **_about(review)})
            self._metrics.crashes.labels(hook=hook).inc()
            judgement = _FAILED
            answer = encode_answer(review, judgement)
        self._metrics.answered(hook, time.perf_counter() - started, allowed=judgement.allowed)
        if judgement.errors:
            rules = sorted({fault.rule for fault in judgement.errors})
            log.info("refused", extra={"hook": str(hook), "rules": rules, **_about(review)})
        return answer


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


def _request(*arguments: Any) -> web.BaseRequest:
    """Make requests as aiohttp does, with our bound on the body."""
    make: Callable[..., web.BaseRequest] = web.BaseRequest
    return make(*arguments, asyncio.get_running_loop(), client_max_size=MAX_BODY)


def _hook_of(request: web.BaseRequest) -> Hook:
    # As it was sent: no caller escapes letters, and taking a URL apart costs more than all that is asked here.
    hook = _HOOKS.get(request.raw_path.partition("?")[0])
    if hook is None:
        raise BadRequestError(404, f"there is nothing here; reviews are answered at {_PATHS}")
    if request.method != "POST":
        raise BadRequestError(405, "a review is sent by POST")
    if request.headers.get("Content-Type") != _JSON and request.content_type != _JSON:  # with parameters, say
        raise BadRequestError(415, "the content type must be application/json")
    if (request.content_length or 0) > MAX_BODY:
        raise BadRequestError(413, f"the body must not be larger than {MAX_BODY} bytes")
    return hook


async def _body_of(request: web.BaseRequest) -> bytes:
    try:
        if request.content.is_eof():  # it came together with the head, as nearly always: nothing to wait for
            return await request.read()
        async with asyncio.timeout(timeout_s(request.query.get("timeout", ""))):
            return await request.read()
    except TimeoutError as error:
        raise BadRequestError(408, "the body did not come within the request's own timeout") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise BadRequestError(413, f"the body must not be larger than {MAX_BODY} bytes") from error
    except web.RequestPayloadError as error:
        raise BadRequestError(400, "the body cannot be read as its headers describe it") from error


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
