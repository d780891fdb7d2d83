"""What a verdict leaves beside its message: the page that it names, and the audit log; what runs has no finding."""

import json
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.testing.builders import pod
from bowline_cli.main import main
from tests.live import Live
from tests.plugins.sharing import Shares

pytestmark = pytest.mark.usefixtures("kubectl_in_path")


def shared_pod(live: Live, annotations: dict[str, str]) -> Any:
    raw = pod("w", live.namespace)
    raw["metadata"]["annotations"] = annotations
    return raw


def test_a_denial_and_explain_name_the_published_documentation(
    pair: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pair.pair.webhook is not None
    pair.pair.webhook.stop()
    try:
        pair.pair.upgrade({"config.docsURL": "https://docs.example.com/bowline/"})
        pair.pair.launch_webhook().wait_ready()
        share = shared_pod(pair, {names.GPU_FRACTION: "2"})
        result = pair.kubectl("apply", "-f", "-", objects=share, check=False)
        page = "https://docs.example.com/bowline/rules.html#gpu_requestfraction-range"
        assert result.stderr.splitlines()[-1] == f"* bowline: denied the object; see {page}"
        pair.create_pod()
        assert (
            main(["explain", "pod", f"--namespace={pair.namespace}", f"--kubeconfig={pair.cluster.kubeconfig}"]) == 0
        )
        assert "  more   https://docs.example.com/bowline/stuck-pods.html#no-decision\n" in capsys.readouterr().out
    finally:
        pair.pair.webhook.stop()
        pair.pair.upgrade({"config.docsURL": ""})
        pair.pair.launch_webhook().wait_ready()


def test_what_runs_in_the_cluster_has_no_finding(
    pair: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = Shares(pair)
    shares.share("half", "lint-agrees")
    pair.until("the share runs", lambda: pair.pod("half")["status"].get("phase") == "Running" or None)
    dump = pair.cluster.kubectl("get", "pods,bindrequests", "--all-namespaces", "-o", "yaml")
    path = tmp_path / "dump.yaml"
    path.write_text(dump.stdout)
    assert main(["lint", str(path), "-o", "json"]) == 0
    objects = json.loads(capsys.readouterr().out)["objects"]
    assert [entry for entry in objects if entry["errors"]] == []
    (half,) = [entry for entry in objects if (entry["kind"], entry["name"]) == ("Pod", "half")]
    assert (half["verdict"], half["warnings"]) == ("allowed", [])
    shares.delete("half")
    shares.await_release("lint-agrees")


def audit_annotations(pair: Live, resource: str, name: str) -> dict[str, str] | None:
    """Return the audit annotations of our webhooks for the creation of the object; None until it is logged."""
    for line in pair.cluster.audit_lines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        place = (about.get("namespace"), about.get("resource"), about.get("name"))
        if (event["stage"], event["verb"], *place) == ("ResponseComplete", "create", pair.namespace, resource, name):
            annotations = event.get("annotations") or {}
            return {key: annotations[key] for key in annotations if key.startswith("pods.bowline.dev/")}
    return None


def test_the_audit_log_records_the_decision_and_its_rules(pair: Live) -> None:
    raw = shared_pod(pair, {names.GPU_FRACTION: "2", names.GPU_MEMORY: "1", names.GPU_FRACTION_NUM_DEVICES: "0"})
    pair.kubectl("create", "-f", "-", objects=raw, check=False)
    rules = ("fraction-range", "memory-and-fraction", "num-devices-format")
    assert pair.until("the creation is in the audit log", lambda: audit_annotations(pair, "pods", "w")) == {
        "pods.bowline.dev/decision": "refused",
        "pods.bowline.dev/rules": ",".join(f"gpu_request/{rule}" for rule in rules),
    }
