"""``bowline lint`` with the release's configuration and kubectl give the same verdicts and messages.

Each example manifest, and objects of each kind that the configuration lists, are applied both ways; all as dry runs.
And what runs in the cluster has no finding.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.templates import Workload
from bowline.framework.workload_kinds import BUILT_IN, READY
from bowline.testing.builders import pod
from bowline_cli.main import main
from bowline_cli.verdicts import LintResult, LintVerdict, review_manifest
from tests.foreign_kinds import api_version, filled
from tests.live import Live
from tests.manifest_files import read_manifests, released_chain
from tests.plugins.sharing import Shares

# The field of the last cause of each denial.
SIGNED = "* bowline: "
# What the API server denies itself, with its own words, before it calls the webhooks for Kubernetes' own kinds.
OWN_RULES = ("kubernetes/", "structure/", "gpu_request/quantity-", "gpu_request/request-", "gpu_request/limit-")


@pytest.fixture
def live(pair: Live, kinds: None) -> Live:
    """The pair on a cluster with the kinds."""
    return pair


def lint(live: Live, path: Path) -> list[LintResult]:
    chain = released_chain(live)
    return [review_manifest(chain, manifest) for manifest in read_manifests(str(path))]


def assert_agreement(live: Live, *paths: Path) -> list[LintResult]:
    """Apply the files both ways and compare; returns the results of lint. A kubectl for each would cost CPU."""
    results = [result for path in paths for result in lint(live, path)]
    arguments = [f"--filename={path}" for path in paths]
    answer = live.kubectl("create", "--dry-run=server", *arguments, check=False)
    denials = [result for result in results if result.verdict is LintVerdict.DENIED]
    assert (answer.returncode == 0) == (not denials), answer.stderr
    assert answer.stdout.count("created (server dry run)") == len(results) - len(denials), answer.stderr
    errors = [error for result in denials for error in result.review.errors]
    # kubectl prints the causes of a single denial only.
    sign = SIGNED if len(paths) == 1 else "denied the request: "
    if sign in answer.stderr or not any(error.rule.id.startswith(OWN_RULES) for error in errors):
        assert answer.stderr.count(sign) == len(denials), answer.stderr
        for error in errors:
            assert f"{error.path}: " in answer.stderr
    # The API server warns about other things, too.
    assert len(warnings_of(answer.stderr)) >= sum(len(result.review.warnings) for result in results)
    return results


def warnings_of(text: str) -> list[str]:
    return [line.removeprefix("Warning: ") for line in text.splitlines() if line.startswith("Warning: ")]


def template(scheduler: str, fraction: str) -> Any:
    metadata = {"labels": {"app": "x"}, "annotations": {names.GPU_FRACTION: fraction}}
    return {"metadata": metadata, "spec": {**pod()["spec"], "schedulerName": scheduler, "restartPolicy": "Never"}}


def object_of_kind(workload: Workload, content: Any) -> Any:
    raw = filled(workload, content)
    if workload in BUILT_IN:
        version = f"{workload.group}/v1".lstrip("/")
        return _completed({"apiVersion": version, "kind": workload.kind, "metadata": {"name": "w"}, **raw})
    return {"apiVersion": api_version(workload.kind), "kind": workload.kind, "metadata": {"name": "w"}, **raw}


def _completed(raw: Any) -> Any:
    """Return the object of a built-in kind with what its schema requires beside the template."""
    kind, spec = raw["kind"], raw["spec"]
    if kind == "ReplicationController":
        spec["selector"] = {"app": "x"}
    elif kind == "CronJob":
        spec["schedule"] = "0 0 1 1 *"
    elif kind != "Job":
        spec["selector"] = {"matchLabels": {"app": "x"}}
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"):
        spec["template"]["spec"]["restartPolicy"] = "Always"
    if kind == "StatefulSet":
        spec["serviceName"] = "w"
    return raw


def test_an_invalid_share_in_each_configured_kind_gets_the_same_verdict_both_ways(live: Live, tmp_path: Path) -> None:
    workloads = (*BUILT_IN, *READY)
    paths = [tmp_path / f"{number}.json" for number in range(len(workloads))]
    for path, workload in zip(paths, workloads, strict=True):
        path.write_text(json.dumps(object_of_kind(workload, template("kai-scheduler", "2"))))
    results = assert_agreement(live, *paths)
    # The configuration says Warn for RayClusters.
    allowed = [result.manifest.kind for result in results if result.verdict is LintVerdict.ALLOWED]
    assert allowed == ["RayCluster"]
    assert all(result.review.errors or result.review.warnings for result in results)
    assert len(results) == len(workloads)


def test_what_runs_in_the_cluster_has_no_finding(
    live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = Shares(live)
    shares.share("half", "lint-agrees")
    live.until("the share runs", lambda: live.pod("half")["status"].get("phase") == "Running" or None)
    dump = live.cluster.kubectl("get", "pods,bindrequests", "--all-namespaces", "-o", "yaml")
    path = tmp_path / "dump.yaml"
    path.write_text(dump.stdout)
    assert main(["lint", str(path), "-o", "json"]) == 0
    objects = json.loads(capsys.readouterr().out)["objects"]
    assert [entry for entry in objects if entry["errors"]] == []
    (half,) = [entry for entry in objects if (entry["kind"], entry["name"]) == ("Pod", "half")]
    assert (half["verdict"], half["warnings"]) == ("allowed", [])
    shares.delete("half")
    shares.await_release("lint-agrees")
