"""The cost of a review by itself: bytes to a verdict to bytes, in this process, without any network.

The chain is that of all default plugins. Beside each figure is the minimum for the same body in Python: decode it and
encode it again. Both are CPU time and alternate, so that their ratio holds on a busy machine, too; changes of the
chain, the plugins and ``bowline_webhook.review`` are measured by it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.spec import ClusterSpec
from bowline.plugins.catalog import BUILTINS
from bowline_webhook.hooks import Hook
from bowline_webhook.review import decode_review, encode_answer, review_object
from tests.benchmarks.admission import HOOKS
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.reviews import NAMESPACE, check_answer, review_bodies


@dataclass(frozen=True, slots=True)
class ReviewSizes:
    """Sizes of all parts."""

    turns: int = 40
    turn_bytes: int = 1_000_000  # of bodies in each turn: some 200 small ones, some 30 ms


QUICK = ReviewSizes(turns=3, turn_bytes=100_000)


async def bench_reviews(sizes: ReviewSizes) -> Report:
    """Measure each hook with each kind of pod; takes half a minute in full."""
    report = Report("Reviews, in one process")
    settings = Settings()
    chain = AdmissionChain(Registry(BUILTINS).build(settings), settings)
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        cluster.make_namespace(NAMESPACE)
        cluster.make_runtime_class()  # for shares
        async with KubeClient(
            await load_access(api_server(cluster.kubeconfig)), ClientOptions(name="bench")
        ) as client:
            bodies = await review_bodies(client)
    for (word, kind), body in bodies.items():
        hook = HOOKS[word]
        review_body = _mutate(body, chain) if hook is Hook.VALIDATE_PODS else body
        check_answer(word, kind, _review(review_body, hook, chain))
        bare, ours = _in_turns(
            (partial(_recode, review_body), partial(_review, review_body, hook, chain)), len(review_body), sizes
        )
        least = f"decode and encode: {word}, {kind}"
        report.add(Figure(least, "us", bare))
        report.add(Figure(f"{word}: {kind}", "us", ours, least))
    return report


def _review(body: bytes, hook: Hook, chain: AdmissionChain) -> bytes:
    review = decode_review(body)
    return encode_answer(review, review_object(hook, review, chain))


def _recode(body: bytes) -> bytes:
    return orjson.dumps(orjson.loads(body))


def _mutate(body: bytes, chain: AdmissionChain) -> bytes:
    """Return the review as it is after mutation: no webhook runs here that would have mutated the pod."""
    document, review = orjson.loads(body), decode_review(body)
    review_object(Hook.MUTATE_PODS, review, chain)  # in place
    document["request"]["object"] = review.object
    return orjson.dumps(document)


def _in_turns(
    calls: tuple[Callable[[], object], ...], size: int, sizes: ReviewSizes
) -> tuple[tuple[float, ...], ...]:
    """Return for each of the calls the microseconds of CPU it took, turn by turn."""
    times = max(1, sizes.turn_bytes // size)
    took: tuple[list[float], ...] = tuple([] for _ in calls)
    for _ in range(sizes.turns):
        for call, microseconds in zip(calls, took, strict=True):
            began = time.process_time()
            for _ in range(times):
                call()
            microseconds.append(1e6 * (time.process_time() - began) / times)
    return tuple(map(tuple, took))
