"""Objects of configured kinds: the chart's hooks, the webhook, real CRDs.

Which requests make the API server call the webhook is in tests/chart/test_workload_calls_live.py.
"""

from typing import Any

import pytest

from bowline.api import names
from bowline.testing.builders import pod
from tests.foreign_kinds import job_set, objects_path
from tests.live import Live


@pytest.fixture
def live(pair: Live, kinds: None) -> Live:
    """The pair on a cluster with the kinds."""
    return pair


SPEC = {**pod()["spec"], "restartPolicy": "Never"}
GOOD: Any = {"metadata": {}, "spec": SPEC}
BAD: Any = {"metadata": {"annotations": {names.GPU_FRACTION: "2"}}, "spec": SPEC}


def review_count(live: Live) -> int:
    """Return the number of workloads that the webhook has validated."""
    assert live.pair.webhook is not None
    _, text = live.pair.webhook.get("/metrics")
    lines = [line for line in text.splitlines() if 'hook="/validate/workloads"' in line]
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("bowline_admission_requests_total{"))


def test_an_old_invalid_workload_can_be_scaled_and_only_new_errors_deny(live: Live) -> None:
    # Objects that a controller creates are not validated: so an invalid one is stored, like one from before.
    uid = live.create_pod("owner")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": uid, "controller": True}
    live.create(job_set("w", BAD, GOOD, ownerReferences=[owner]))
    before = review_count(live)
    for change in (
        '{"metadata": {"ownerReferences": null}}',
        '{"metadata": {"labels": {"a": "b"}, "finalizers": ["test.bowline.dev/keep"]}}',
        '{"spec": {"suspend": true}}',
    ):
        live.kubectl("patch", "jobset", "w", "--type=merge", f"-p={change}")
    scale = '[{"op": "replace", "path": "/spec/replicatedJobs/0/replicas", "value": 7}]'
    live.kubectl("patch", "jobset", "w", "--type=json", f"-p={scale}")
    assert review_count(live) == before, "none of these changes a template"
    image = '[{"op": "replace", "path": "%s/spec/containers/0/image", "value": "other:1"}]'
    place = "/spec/replicatedJobs/%d/template/spec/template"
    live.kubectl("patch", "jobset", "w", "--type=json", f"-p={image % (place % 1)}")
    assert review_count(live) == before + 1, "the valid template is validated, the unchanged invalid one is not"
    denial = live.kubectl("patch", "jobset", "w", "--type=json", f"-p={image % (place % 0)}", check=False)
    field = f"spec.replicatedJobs[0].template.spec.template.metadata.annotations[{names.GPU_FRACTION}]"
    assert field in denial.stderr
    move = '[{"op": "move", "from": "/spec/replicatedJobs/0", "path": "/spec/replicatedJobs/1"}]'
    live.kubectl("patch", "jobset", "w", "--type=json", f"-p={move}")
    live.kubectl("delete", "jobset", "w", "--wait=false")
    live.kubectl("patch", "jobset", "w", "--type=merge", '-p={"metadata":{"finalizers":null}}')
    live.until("it is deleted", lambda: live.not_found(f"{objects_path('JobSet', live.namespace)}/w"))
