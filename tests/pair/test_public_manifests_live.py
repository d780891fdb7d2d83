"""``bowline lint`` and the API server with the chart give each object of public manifests, and each rule's invalid
example in pods and workloads of several schedulers, the same verdict. All requests are dry runs.

The manifests are read where they are: ``BOWLINE_MANIFESTS``, or ``shared/manifests`` beside the checkout.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.api.rule import Severity
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings, parse_settings
from bowline.framework.registry import Registry
from bowline.framework.strict_yaml import YamlBudget
from bowline.localcluster.api import ApiClient
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.errors import LocalApiError
from bowline.plugins.catalog import BUILTINS
from bowline_cli.manifests import Manifest, read_file
from bowline_cli.rule import admission_rules
from bowline_cli.schema import open_schema
from bowline_cli.verdicts import LintResult, LintVerdict, review_manifest, with_ready_kinds
from tests.live import Live
from tests.rule_examples import example_object

# Not part of this repository: the folder that the environment names, else the nearest one beside the checkout.
FOLDERS = (parent / "shared" / "manifests" for parent in Path(__file__).resolve().parents)
FOLDER = Path(os.environ.get("BOWLINE_MANIFESTS") or next(filter(Path.is_dir, FOLDERS), "absent"))
ABSENT = "the manifests are not here: no BOWLINE_MANIFESTS, and no shared/manifests beside the checkout"
FILES = sorted(FOLDER.rglob("*.yaml"))
SCHEMA = open_schema()
IS_OLD = int(release_for(None, os.environ).minor.partition(".")[2]) < 34
needs_validation = pytest.mark.skipif(
    IS_OLD,
    reason="lint judges as Kubernetes 1.34 and newer; older ones drop pod-level resources and check templates less",
)


class Submitter:
    """A user with all rights, whom no policy trusts: dry runs of objects in one namespace."""

    def __init__(self, live: Live) -> None:
        self._live = live
        user = f"system:serviceaccount:{live.namespace}:submitter"
        self._api: ApiClient = live.cluster.api_as(user)
        self._paths: dict[str, Mapping[str, tuple[str, bool]]] = {}
        live.kubectl("create", "serviceaccount", "submitter")
        account = f"--serviceaccount={live.namespace}:submitter"
        live.kubectl(
            "create", "clusterrolebinding", f"{live.namespace}-submitter", "--clusterrole=cluster-admin", account
        )
        live.until_allowed(user, "create", "pods")

    def denial(self, raw: Mapping[str, Any]) -> str | None:
        """Return why the API server denies the object; empty if it admits it, None if it does not serve the kind."""
        group = f"/apis/{raw['apiVersion']}" if "/" in raw["apiVersion"] else f"/api/{raw['apiVersion']}"
        resource = self._resources(group).get(raw["kind"])
        if resource is None:
            return None
        plural, is_namespaced = resource
        metadata = {**raw["metadata"], **({"namespace": self._live.namespace} if is_namespaced else {})}
        place = f"/namespaces/{self._live.namespace}" if is_namespaced else ""
        try:
            path = f"{group}{place}/{plural}?dryRun=All&fieldValidation=Strict"
            self._api.post(path, {**raw, "metadata": metadata})
        except LocalApiError as error:
            if error.status not in (400, 403, 422, 500):
                raise
            return str(error)
        return ""

    def _resources(self, group: str) -> Mapping[str, tuple[str, bool]]:
        if group not in self._paths:
            try:
                entries = self._api.get(group)["resources"]
            except LocalApiError as error:
                if error.status != 404:
                    raise
                entries = []
            self._paths[group] = {e["kind"]: (e["name"], e["namespaced"]) for e in entries if "/" not in e["name"]}
        return self._paths[group]


@pytest.fixture
def submitter(pair: Live, kinds: None) -> Iterator[Submitter]:
    """A user of the namespace of this test."""
    yield Submitter(pair)
    pair.kubectl("delete", "clusterrolebinding", f"{pair.namespace}-submitter")


def released_chain(live: Live) -> AdmissionChain:
    """Return the chain of lint with the webhook's configuration, without plugins of tests: they review nothing."""
    maps = live.cluster.api.get("/api/v1/namespaces/bowline-system/configmaps")["items"]
    (text,) = [item["data"]["config.yaml"] for item in maps if "config.yaml" in (item.get("data") or {})]
    settings = with_ready_kinds(parse_settings(text))
    built_in: Settings = settings.model_copy(update={"plugins": ()})
    return AdmissionChain(Registry(BUILTINS, discover=dict).build(built_in), settings)


def reviewed(chain: AdmissionChain, raw: Any) -> LintResult:
    return review_manifest(chain, Manifest("x", 1, copy.deepcopy(raw)), SCHEMA)


@pytest.mark.skipif(not FILES, reason=ABSENT)
def test_public_manifests_have_the_api_servers_verdict(pair: Live, submitter: Submitter) -> None:
    chain, comparisons, wrong = released_chain(pair), 0, []
    for file in FILES:
        content = read_file(str(file), YamlBudget(), is_named=True)
        for manifest in () if content.errors else content.manifests:
            raw = manifest.object
            denial = submitter.denial(raw)
            result = reviewed(chain, raw)
            if denial is None or result.verdict in (LintVerdict.UNRENDERED, LintVerdict.PARTIAL):
                continue
            comparisons += 1
            is_own = SCHEMA is not None and SCHEMA.has(*manifest.api)
            # Of another project's kind the API server stores what its pods are denied for later.
            is_later = not is_own and all(e.rule.id.startswith("kubernetes/") for e in result.review.errors)
            if (result.verdict is LintVerdict.DENIED) != bool(denial) and not is_later:
                wrong.append(
                    f"{file.name}: {manifest.kind}: {result.verdict} {result.review.errors}, but: {denial!r}"
                )
    assert wrong == []
    # An older one does not serve some of the kinds.
    assert comparisons >= (70 if IS_OLD else 75), "most of the objects were compared"


DENIALS = [rule for rule in admission_rules() if rule.invalid and rule.severity is Severity.DENIES]
PODS = [
    rule
    for rule in DENIALS
    if not {"podName", "kind"} & yaml.safe_load(rule.invalid).keys() and not rule.id.startswith("nv_fractions/")
]


# One that the release serves, the cluster's own, and one that nobody serves.
SCHEDULERS = ("example-scheduler", "default-scheduler", "volcano")


@needs_validation
def test_while_the_webhook_is_down_nothing_is_admitted_that_lint_denies(pair: Live, submitter: Submitter) -> None:
    chain, wrong = released_chain(pair), []
    webhook = pair.pair.webhook
    assert webhook is not None
    webhook.stop()
    try:
        for rule in PODS:
            for scheduler in SCHEDULERS:
                raw = example_object(rule.invalid, scheduler=scheduler)
                result, denial = reviewed(chain, raw), submitter.denial(raw)
                if denial and rule.cel is not None and rule.id not in denial:
                    wrong.append(f"{rule.id} for {scheduler}: {denial} does not name it")
                if result.verdict is LintVerdict.DENIED and not denial:
                    wrong.append(f"{rule.id} for {scheduler}: {result.review.errors}, but admitted")
                if result.verdict is LintVerdict.OUT_OF_SCOPE and denial:
                    wrong.append(f"{rule.id} for {scheduler}: {result.verdict}, but: {denial}")
    finally:
        pair.pair.launch_webhook().wait_ready()
    assert wrong == []
