"""Each example manifest gets the verdict that it states: offline, from the bare API server, and from the pair."""

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.localcluster.cluster import Cluster
from bowline.plugins.catalog import BUILTINS
from bowline_cli.verdicts import LintResult, review_manifest, with_ready_kinds
from tests.examples.manifests import Example, examples
from tests.live import Live
from tests.manifest_files import read_manifests
from tests.plugins.claims import require_api

GOOD, BAD = examples("good"), examples("bad")
# Those of other projects are tested in tests/pair/test_workloads_live.py, where the API server serves the kinds.
KNOWN_GOOD, KNOWN_BAD = ([param for param in params if not param.values[0].is_foreign] for params in (GOOD, BAD))
# The API server rejects these by itself; the others it does not check.
ITS_OWN_RULES = {
    "structure/type",
    *(
        f"gpu_request/{rule}"
        for rule in ("quantity-format", "quantity-integer", "request-differs", "limit-missing", "pod-level")
    ),
}
# Errors of decoding an object: the API server replies before it calls any webhook.
UNREADABLE = {"structure/type", "gpu_request/quantity-format"}


def bowline_speaks_first(example: Example) -> bool:
    """Whether the user gets the pair's verdict.

    The API server validates after mutating webhooks, which see pods, and before validating ones, which see workloads.
    """
    errors = {*example.errors}
    is_pod = all(manifest.kind == "Pod" for manifest in read_manifests(str(example.path)))
    return not errors & UNREADABLE and (is_pod or not errors & ITS_OWN_RULES)


def lint(example: Example) -> list[LintResult]:
    settings = with_ready_kinds(Settings())
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)
    return [review_manifest(chain, manifest) for manifest in read_manifests(str(example.path))]


@pytest.mark.parametrize("example", [*GOOD, *BAD])
def test_lint_gives_the_stated_verdict(example: Example) -> None:
    results = lint(example)
    errors = tuple(fault.rule.id for result in results for fault in result.review.errors)
    warnings = tuple(fault.rule.id for result in results for fault in result.review.warnings)
    assert (errors, warnings) == (example.errors, example.warnings)


def skip_what_is_too_new(cluster: Cluster, example: Example) -> None:
    if "resource.k8s.io/v1" in example.path.read_text():
        require_api(cluster)


@pytest.mark.parametrize("example", KNOWN_BAD)
def test_without_bowline_only_the_api_servers_own_rules_reject_an_example(cluster: Cluster, example: Example) -> None:
    result = cluster.kubectl("create", "--dry-run=server", "-f", str(example.path), check=False)
    assert (result.returncode != 0) == bool(ITS_OWN_RULES & set(example.errors)), result.stderr


@pytest.mark.parametrize("example", KNOWN_GOOD)
def test_the_pair_accepts_a_valid_example_with_its_warnings(pair: Live, example: Example) -> None:
    skip_what_is_too_new(pair.cluster, example)
    result = pair.kubectl("create", "--dry-run=server", "-f", str(example.path))
    warnings = [f"Warning: {fault} ({fault.rule}; bowline)" for r in lint(example) for fault in r.review.warnings]
    assert [line for line in result.stderr.splitlines() if line.startswith("Warning: ")] == warnings


@pytest.mark.parametrize("example", KNOWN_BAD)
def test_the_pair_denies_an_invalid_example(pair: Live, example: Example) -> None:
    result = pair.kubectl("create", "--dry-run=server", "-f", str(example.path), check=False)
    assert result.returncode != 0
    if bowline_speaks_first(example):
        faults = [fault for result_of_lint in lint(example) for fault in result_of_lint.review.errors]
        assert faults
        for fault in faults:
            assert fault.path in result.stderr
            assert fault.message in result.stderr
