"""Objects of configured kinds: the chart's hooks, the webhook, real CRDs.

Which requests make the API server call the webhook is in tests/chart/test_workload_calls_live.py.
"""

from typing import Any

import pytest

from bowline.api import names
from bowline.testing.builders import pod
from tests.foreign_kinds import job_set, objects_path, pytorch_job, ray_cluster
from tests.live import Live


@pytest.fixture
def live(pair: Live, kinds: None) -> Live:
    """The pair on a cluster with the kinds."""
    return pair


def template(**annotations: str) -> dict[str, Any]:
    spec = {**pod()["spec"], "restartPolicy": "Never"}
    return {
        "metadata": {"annotations": {key.replace("_", "-"): value for key, value in annotations.items()}},
        "spec": spec,
    }


GOOD, BAD, WORSE = template(), template(gpu_fraction="2"), template(gpu_memory="much", gpu_fraction_num_devices="0")


def review_count(live: Live) -> int:
    """Return the number of workloads that the webhook has validated."""
    assert live.pair.webhook is not None
    _, text = live.pair.webhook.get("/metrics")
    lines = [line for line in text.splitlines() if 'hook="/validate/workloads"' in line]
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("bowline_admission_requests_total{"))


def denial(live: Live, *command: str, raw: Any = None) -> str:
    result = live.kubectl(*command, objects=raw, check=False)
    assert result.returncode == 1, result.stdout
    return result.stderr


def owner_references(live: Live, *, kind: str, name: str) -> list[dict[str, Any]]:
    """Return owner references to a controller that exists: the garbage collector deletes objects of absent owners."""
    if kind == "Pod":
        return [_reference("v1", "Pod", name, live.pod(name)["metadata"]["uid"])]
    owner = live.cluster.api.get(f"{objects_path(kind, live.namespace)}/{name}")
    return [_reference(owner["apiVersion"], kind, name, owner["metadata"]["uid"])]


def _reference(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


PATHS_OF_WORSE = [f"metadata.annotations[{key}]" for key in (names.GPU_MEMORY, names.GPU_FRACTION_NUM_DEVICES)]
REFUSED = [
    pytest.param(
        job_set("w", GOOD, BAD, WORSE),
        [
            f"spec.replicatedJobs[1].template.spec.template.metadata.annotations[{names.GPU_FRACTION}]",
            *(f"spec.replicatedJobs[2].template.spec.template.{path}" for path in PATHS_OF_WORSE),
        ],
        id="a JobSet",
    ),
    pytest.param(
        pytorch_job("w", Worker=WORSE, Master=BAD),
        [
            f"spec.pytorchReplicaSpecs[Master].template.metadata.annotations[{names.GPU_FRACTION}]",
            *(f"spec.pytorchReplicaSpecs[Worker].template.{path}" for path in PATHS_OF_WORSE),
        ],
        id="a PyTorchJob, its roles by name",
    ),
]


@pytest.mark.parametrize(("raw", "paths"), REFUSED)
def test_an_invalid_workload_is_denied_with_every_error_of_every_template(
    live: Live, raw: Any, paths: list[str]
) -> None:
    error = denial(live, "create", "-f", "-", raw=raw)
    assert error.startswith(f'The {raw["kind"]} "w" is invalid')
    assert [line.split(": ")[0].removeprefix("* ") for line in error.splitlines()[1:-1]] == paths
    assert live.not_found(f"{objects_path(raw['kind'], live.namespace)}/w")


def test_a_kind_in_warn_mode_gets_the_same_errors_as_warnings(live: Live) -> None:
    result = live.kubectl("create", "-f", "-", objects=ray_cluster("w", BAD, GOOD, WORSE))
    warnings = [line.removeprefix("Warning: ") for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert [line.split(": ")[0] for line in warnings] == [
        f"spec.headGroupSpec.template.metadata.annotations[{names.GPU_FRACTION}]",
        *(f"spec.workerGroupSpecs[1].template.{path}" for path in PATHS_OF_WORSE),
    ]
    assert live.cluster.api.get(f"{objects_path('RayCluster', live.namespace)}/w")["metadata"]["name"] == "w"


def test_an_old_invalid_workload_can_be_scaled_and_only_new_errors_deny(live: Live) -> None:
    live.create(pod("owner"))
    # Objects that a controller creates are not validated: so an invalid one is stored, like one from before.
    live.create(job_set("w", BAD, GOOD, ownerReferences=owner_references(live, kind="Pod", name="owner")))
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
    error = denial(live, "patch", "jobset", "w", "--type=json", f"-p={image % (place % 0)}")
    assert f"spec.replicatedJobs[0].template.spec.template.metadata.annotations[{names.GPU_FRACTION}]" in error
    move = '[{"op": "move", "from": "/spec/replicatedJobs/0", "path": "/spec/replicatedJobs/1"}]'
    live.kubectl("patch", "jobset", "w", "--type=json", f"-p={move}")
    live.kubectl("delete", "jobset", "w", "--wait=false")
    live.kubectl("patch", "jobset", "w", "--type=merge", '-p={"metadata":{"finalizers":null}}')
    live.until("it is deleted", lambda: live.not_found(f"{objects_path('JobSet', live.namespace)}/w"))
