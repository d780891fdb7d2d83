"""``bowline lint``: verdicts, output for people and programs, exit status."""

import copy
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from bowline.framework.interface.plugin import AdmissionInfo
from bowline_cli.main import main
from bowline_cli.schema import UNCHECKED
from tests.unit.framework.test_strict_yaml import bomb
from tests.unit.webhook.chains import built_in

GOOD = """
apiVersion: v1
kind: Pod
metadata: {name: good, namespace: team, annotations: {gpu-fraction: "0.5"}}
spec: {schedulerName: example-scheduler, containers: [{name: main, image: x}]}
"""
BAD = """
apiVersion: v1
kind: Pod
metadata: {generateName: train-, annotations: {gpu-fraction: "2", gpu-fraction-num-devices: none}}
spec: {schedulerName: example-scheduler, containers: [{name: main, image: x}]}
"""
BAD_REQUEST = """
apiVersion: scheduling.run.ai/v1alpha2
kind: BindRequest
metadata: {name: p}
spec: {podName: p, receivedGPU: {portion: "1.5"}}
"""
FRACTION = """
apiVersion: scheduling.run.ai/v1alpha2
kind: BindRequest
metadata: {name: p}
spec: {podName: p, selectedNode: node-1, receivedResourceType: Fraction, receivedGPU: {count: 0}, backoffLimit: "3"}
"""
FOREIGN = """
apiVersion: v1
kind: Pod
metadata: {name: foreign, annotations: {gpu-fraction: "0.5"}}
spec: {containers: [{name: main, image: x}]}
"""
JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  replicatedJobs:
    - name: a
      template: {spec: {template: {spec: {schedulerName: example-scheduler, containers: [{name: main, image: x}]}}}}
    - name: b
      template:
        spec:
          template:
            metadata: {annotations: {gpu-fraction: "2"}}
            spec: {schedulerName: example-scheduler, containers: [{name: main, image: x}]}
"""
HEAD = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"
OTHER = "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}"


@pytest.fixture
def lint(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command on texts written to files; returns exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*texts: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        files = []
        for index, text in enumerate(texts):
            Path(f"{index}.yaml").write_text(text)
            files.append(f"{index}.yaml")
        status = main(["lint", *options, *files])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def findings(out: str, kind: str) -> list[tuple[str, str]]:
    """The rule and the path of each error, or each warning, in the output for programs."""
    return [(entry["rule"], entry["path"]) for item in json.loads(out)["objects"] for entry in item[kind]]


def test_valid_pods_are_allowed(lint: Any) -> None:
    assert lint(GOOD) == (0, "0.yaml:2: Pod team/good: allowed\n1 object: 1 allowed\n", "")


def test_every_error_is_a_line_with_path_value_remedy_and_rule(lint: Any) -> None:
    status, out, _ = lint(GOOD + "---" + BAD)
    lines = out.splitlines()
    assert status == 1
    assert lines[1] == "0.yaml:7: Pod train-*: denied"
    assert lines[2].startswith('  metadata.annotations[gpu-fraction]: "2": must be ')
    assert lines[2].endswith("(gpu_request/fraction-range)")
    assert lines[3].startswith('  metadata.annotations[gpu-fraction-num-devices]: "none": must be ')
    assert lines[-1] == "2 objects: 1 allowed, 1 denied"


def test_the_output_for_programs(lint: Any) -> None:
    status, out, _ = lint(BAD, FOREIGN, OTHER, options=("-o", "json"))
    document = json.loads(out)
    assert status == 1
    assert (document["version"], document["schema"], document["unreadable"]) == (2, "1.37", [])
    denial, foreign_object, unknown_kind = document["objects"]
    assert (denial["file"], denial["line"], denial["name"]) == ("0.yaml", 2, "train-*")
    assert (denial["verdict"], denial["reviewed"]) == ("denied", True)
    assert {"rule", "path", "line", "value", "message"} == set(denial["errors"][0])
    assert (denial["errors"][0]["path"], denial["errors"][0]["value"]) == ("metadata.annotations[gpu-fraction]", "2")
    assert (foreign_object["verdict"], foreign_object["reviewed"]) == ("out of scope", False)
    assert foreign_object["reason"] == "scheduler default-scheduler"
    assert [fault["rule"] for fault in foreign_object["warnings"]] == ["scope/scheduler"]
    assert unknown_kind == {
        "file": "2.yaml",
        "line": 1,
        "kind": "ConfigMap",
        "namespace": "",
        "name": "other",
        "verdict": "no pods",
        "reviewed": False,
        "schema": True,
        "reason": "",
        "errors": [],
        "warnings": [],
        "patch": [],
    }


def test_every_output_says_that_the_schema_was_not_checked_without_its_library(
    lint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_field = GOOD.replace("containers:", "nodeSelectr: {a: b}, containers:")
    assert (status := lint(unknown_field)[0]) == 1, status
    monkeypatch.setitem(sys.modules, "kubernetes_validate.utils", None)
    verdicts = "0.yaml:2: Pod team/good: allowed\n1.yaml:1: ConfigMap other: no pods\n"
    text = f"{verdicts}2 objects: 1 allowed, 1 no pods\n{UNCHECKED}\n"
    assert lint(unknown_field, OTHER, options=("--all",)) == (0, text, "")
    document = json.loads(lint(unknown_field, options=("-o", "json"))[1])
    assert (document["schema"], document["objects"][0]["schema"]) == ("", False)
    assert f"::notice title=not checked::{UNCHECKED}" in lint(unknown_field, options=("-o", "github"))[1].splitlines()
    version = lint(unknown_field, options=("--kubernetes-version", "1.36"))
    assert version == (2, "", f"--kubernetes-version: cannot be used: {UNCHECKED}\n")


def test_changes_are_shown_as_the_api_server_would_store_them(lint: Any) -> None:
    _, out, _ = lint(GOOD, BAD, FOREIGN, options=("--show-changes",))
    lines = out.splitlines()
    assert lines[:3] == ["0.yaml:2: Pod team/good: allowed", "  --- submitted", "  +++ stored"]
    changes = [line for line in lines[3:] if line.startswith(("  +", "  -"))]
    assert "  +    - name: NVIDIA_VISIBLE_DEVICES" in changes
    assert not [line for line in changes if line.startswith("  -")]
    denial_index = lines.index("1.yaml:2: Pod train-*: denied")
    assert not [line for line in lines[denial_index:] if line.startswith("  +")], "denied and not in scope: no change"


def test_of_a_patch_no_changes_are_shown(lint: Any) -> None:
    patch = '{apiVersion: v1, kind: Pod, metadata: {name: train, annotations: {gpu-fraction: "0.5"}}}'
    out = "0.yaml:1: Pod train: partial (no containers: review the output of kustomize build)"
    assert out in lint(patch, options=("--show-changes", "--all"))[1].splitlines()
    (entry,) = json.loads(lint(patch, options=("-o", "json"))[1])["objects"]
    assert entry["patch"] == []


def test_the_patch_for_programs_leads_to_the_stored_object(lint: Any) -> None:
    _, out, _ = lint(GOOD, options=("-o", "json"))
    (entry,) = json.loads(out)["objects"]
    stored_pod = jsonpatch.apply_patch(yaml.safe_load(GOOD), entry["patch"])
    assert built_in().admit_pod(copy.deepcopy(stored_pod), AdmissionInfo(namespace="team")).patch == ()


EMPTY = {"version": 2, "schema": "1.37", "objects": [], "unreadable": [], "unrendered": [], "charts": [], "others": 0}


def test_input_without_objects_is_an_error_unless_it_is_allowed(lint: Any) -> None:
    assert lint("# nothing") == (2, "no objects found\n", "")
    assert lint("# nothing", options=("--allow-empty",)) == (0, "no objects found\n", "")
    status, out, _ = lint("# nothing", options=("-o", "json"))
    assert (status, json.loads(out)) == (2, EMPTY)


WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve}, annotations: {gpu-fraction: "2"}}
    spec: {containers: [{name: main, image: x}]}
"""


def test_the_case_of_a_kind_is_named_as_its_error(lint: Any) -> None:
    status, out, _ = lint(GOOD.replace("kind: Pod", "kind: pod"))
    assert (status, out.splitlines()[1]) == (1, '  kind: "pod": must be Pod  (API server: kubernetes/type)')


@pytest.mark.parametrize(
    ("options", "status"), [((), 0), (("--config", "config.yaml"), 1)], ids=["plugin off", "plugin on"]
)
def test_an_annotation_that_a_plugin_sets_by_the_binding_is_denied_as_by_the_policy(
    lint: Any, options: tuple[str, ...], status: int
) -> None:
    Path("config.yaml").write_text(f"{HEAD}plugins: [{{name: example_network}}]\n")
    completion = lint(FOREIGN.replace('gpu-fraction: "0.5"', 'example.com/address: "10.0.0.1"'), options=options)
    assert (completion[0], "gpu_sharing/guarded-fact" in completion[1]) == (status, bool(status))


PATCH = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec: {template: {metadata: {annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: main}}}}
"""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param(PATCH, "partial (no containers: review the output of kustomize build)", id="no pod spec"),
        pytest.param(PATCH[: PATCH.index("spec:")] + "spec: {replicas: 3}", "partial (no containers",
            id="no template"),
        pytest.param("{apiVersion: v1, kind: Pod, metadata: {name: p}}", "partial (no containers", id="a pod"),
        pytest.param(JOB_SET.replace("containers: [{name: main, image: x}]", "volumes: []").replace('"2"', '"0.5"'),
            "partial (", id="a foreign kind"),
        pytest.param(GOOD.replace('"0.5"', '"${FRACTION}"'), "unrendered (a variable instead of a value)",
            id="a variable"),
        pytest.param(GOOD.replace("image: x",
            'image: x, resources: {limits: {nvidia.com/gpu: "$(GPUS)"}}').replace("gpu-f", "f"),
            "unrendered (a variable", id="a quantity"),
        pytest.param(GOOD.replace("schedulerName: example-scheduler", 'schedulerName: "${SCHEDULER}"'),
            "unrendered (scheduler ${SCHEDULER})", id="a scheduler"),
        pytest.param(GOOD.replace('"0.5"', "$FRACTION"), "unrendered (a variable instead of a value)",
            id="a variable without braces"),
        pytest.param(GOOD.replace("example-scheduler", "$SCHEDULER"), "unrendered (scheduler $SCHEDULER)",
            id="such a scheduler"),
    ],
)  # fmt: skip
def test_what_is_incomplete_has_no_verdict_instead_of_errors(lint: Any, text: str, word: str) -> None:
    status, out, _ = lint(text, options=("-o", "text", "--all"))
    first, *findings, _ = out.splitlines()
    assert f": {word}" in first
    assert (status, findings) == (0, [])
    _, out, _ = lint(text, options=("-o", "json"))
    assert json.loads(out)["objects"][0]["reviewed"] is False


def sized(resources: str) -> str:
    pod = FOREIGN.replace('annotations: {gpu-fraction: "0.5"}', "labels: {}")
    return pod.replace("image: x", f"image: x, resources: {resources}")


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        pytest.param(JOB_SET, ["spec.replicatedJobs[1].template.spec.template.metadata.annotations[gpu-fraction]"],
            id="a known kind of another project"),
        pytest.param(BAD_REQUEST, ["spec.selectedNode", "spec.receivedGPU.portion"], id="a BindRequest"),
        pytest.param(FRACTION, ["spec.backoffLimit"], id="a number in quotes"),
        pytest.param(FRACTION.replace('"3"', "3"), ["spec.selectedGPUGroups", "spec.receivedGPU.count"],
            id="a Fraction of no device"),
        pytest.param("{apiVersion: v1, kind: Pod, metadata: [], spec: x}", ["metadata", "spec"],
            id="a misshapen pod"),
        # null is what the API server decodes it as.
        pytest.param(GOOD.replace('"0.5"}', '"0.5", note: }'), [], id="null for an annotation"),
        pytest.param(WORKLOAD.replace('"2"}', '"0.5", note: }').replace("containers", "nodeSelector: {zone: }, "
            "schedulerName: kai-scheduler, containers"), [], id="null in a template"),
        pytest.param(GOOD.replace("image: x", "image: x, resources: {limits: {nvidia.com/gpu: }}"), [],
            id="null GPUs"),
        pytest.param(GOOD.replace("image: x", "image: x, resources: {requests: {nvidia.com/gpu: }, "
            "limits: {nvidia.com/gpu: 1}}"), ["gpu_request/share-and-whole", "gpu_request/request-differs"],
            id="a request of null"),
        pytest.param(GOOD.replace('"0.5"', ""), ["gpu_request/fraction-format"], id="a fraction of null"),
        # Whether it is a patch or has a variable elsewhere.
        pytest.param(PATCH.replace('"0.5"', '"2"')
            .replace("spec: {template: {", "spec: {template: {spec: {schedulerName: example-scheduler}, "),
            ["gpu_request/fraction-range"], id="a value in a patch"),
        pytest.param(BAD.replace("none", '"${COUNT}"'), ["gpu_request/fraction-range"],
            id="a value beside that of a variable"),
        # The API server's rules for quantities hold for every pod.
        pytest.param(sized("{requests: {cpu: 500m}, limits: {cpu: 1}}"), [], id="a request below the limit"),
        pytest.param(sized("{requests: {nvidia.com/gpu: 0}}"), ["limits[nvidia.com/gpu]"],
            id="none, without a limit"),
        pytest.param(sized("{requests: {nvidia.com/gpu: 1}}"), ["limits[nvidia.com/gpu]"],
            id="a GPU without a limit"),
        pytest.param(sized("{limits: {nvidia.com/gpu: 500m}}"), ["limits[nvidia.com/gpu]"], id="half a GPU"),
        pytest.param(sized("{limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}"),
            ["requests[nvidia.com/gpu]"],
            id="less GPUs"),
        pytest.param(sized("{limits: {cpu: 1}, requests: {cpu: 2}}"), ["requests[cpu]"], id="above the limit"),
        pytest.param(sized("{limits: {hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 2Mi}}"),
            ["requests[hugepages-2Mi]"],
            id="hugepages"),
        pytest.param(sized("{limits: {memory: -1}}"), ["limits[memory]"], id="below zero"),
        pytest.param(sized("{limits: {memory: much}}"), ["limits[memory]"], id="no quantity"),
    ],
)  # fmt: skip
def test_the_errors_of_an_object(lint: Any, text: str, errors: list[str]) -> None:
    status, out, _ = lint(text, options=("--output=json",))
    found = [f"{path} ({rule})" for rule, path in findings(out, "errors")]
    assert (status, len(found)) == (1 if errors else 0, len(errors)), found
    assert all(map(str.__contains__, found, errors)), found


POD_SPEC = """
apiVersion: example.com/v1
kind: Own
metadata: {name: own}
spec: {annotations: {gpu-fraction: "2"}, pod: {schedulerName: example-scheduler, containers: [{name: a, image: x}]}}
"""


def test_a_wrong_path_in_the_configuration_is_an_error_of_the_usage(lint: Any) -> None:
    Path("config.yaml").write_text(
        HEAD + "workloads: [{group: example.com, kind: Own, resource: owns, templates: [spec.pod]}]\n"
    )
    status, out, _ = lint(POD_SPEC, options=("--config", "config.yaml"))
    assert status == 2
    assert "Own own: not checked (a configured path is wrong)" in out
    assert "  warning: spec.pod: null: is a pod's spec, so its rules are not applied; in Bowline" in out


TRAIN_JOB: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "t"},
    "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2,
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}},
}  # fmt: skip
OVERRIDE = {"targetJobs": [{"name": "node"}], "spec": {"schedulerName": "example-scheduler"}}
TRAINER = "spec.trainer.resourcesPerNode, the templates of spec.runtimeRef"
SERVICE = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "s"},
    "spec": {"predictor": {"schedulerName": "example-scheduler", "model": {"modelFormat": {"name": "onnx"}}}},
}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param(FOREIGN, "out of scope (scheduler default-scheduler)", id="a pod of another scheduler"),
        pytest.param(WORKLOAD, "out of scope (scheduler default-scheduler)", id="a template of another scheduler"),
        pytest.param(GOOD.replace("team", "kube-system"), "out of scope (namespace kube-system)", id="a namespace"),
        pytest.param(JOB_SET.replace("schedulerName: example-scheduler, ", "", 1), "denied", id="one of the two"),
        pytest.param(FOREIGN.replace("kind: Pod", "kind: Podd"), "not checked (did you mean kind Pod?)",
            id="a misspelt kind"),
        pytest.param(OTHER.replace("ConfigMap", "PodMonitor"), "not checked", id="an unknown kind"),
        pytest.param(json.dumps(TRAIN_JOB), f"not checked ({TRAINER})", id="a TrainJob"),
        pytest.param(json.dumps({**TRAIN_JOB, "spec": {**TRAIN_JOB["spec"], "podTemplateOverrides": [OVERRIDE]}}),
            f"allowed (not checked: {TRAINER})", id="a TrainJob with an override"),
        pytest.param(json.dumps(SERVICE), "allowed (not checked: the containers of its runtime)",
            id="an InferenceService"),
    ],
)  # fmt: skip
def test_what_was_not_reviewed_is_not_called_allowed(lint: Any, text: str, word: str) -> None:
    _, out, _ = lint(text, options=("--all",))
    assert out.splitlines()[0].endswith(f": {word}")


@pytest.mark.parametrize(
    ("containers", "status"),
    [
        pytest.param([{"image": "x"}], 0, id="the only container"),
        pytest.param([{"image": "x"}, {"image": "y"}], 1, id="several"),
        pytest.param([{"name": "main", "image": "x"}], 1, id="another name"),
    ],
)
def test_a_container_without_a_name_has_the_one_that_knative_gives_it(
    lint: Any, containers: list[dict[str, str]], status: int
) -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "user-container"}
    spec = {"schedulerName": "example-scheduler", "containers": containers}
    manifest = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }
    assert lint(json.dumps(manifest))[0] == status


def test_a_stored_pod_may_have_its_node(lint: Any) -> None:
    stored_pod = yaml.safe_load(GOOD)
    stored_pod["metadata"]["uid"] = "6dd9cbb5-7a7f-4a7f-9f6e-4f8a9b0c1d2e"
    stored_pod["spec"]["nodeName"] = "gpu-node-0"
    assert lint(json.dumps(stored_pod))[1].startswith("0.yaml:1: Pod team/good: allowed\n")
    del stored_pod["metadata"]["uid"]
    assert "(gpu_request/share-and-node-name)" in lint(json.dumps(stored_pod))[1]


def test_a_scheduler_can_be_assumed_for_pods_that_name_none(lint: Any) -> None:
    assume = ("--assume-scheduler", "example-scheduler")
    status, out, _ = lint(WORKLOAD, options=(*assume, "-o", "json"))
    assert status == 1
    assert [rule for rule, _ in findings(out, "errors")] == ["gpu_request/fraction-range"]
    named = FOREIGN.replace("spec: {", "spec: {schedulerName: other, ")
    assert "out of scope (scheduler other)" in lint(named, options=assume)[1]


def test_directories_and_files_are_read_in_their_order(lint: Any) -> None:
    Path("some/below").mkdir(parents=True)
    Path("some/b.yml").write_text(GOOD)
    Path("some/below/a.json").write_text(json.dumps(yaml.safe_load(BAD)))
    Path("some/notes.txt").write_text("not a manifest")
    status, out, _ = lint(options=("some", "some/b.yml"))
    assert status == 1
    assert [line.partition(": ")[0] for line in out.splitlines() if ": Pod " in line] == [
        "some/b.yml:2",
        "some/below/a.json:1",
        "some/b.yml:2",
    ]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(json.dumps([yaml.safe_load(GOOD)] * 2).encode(), [1, 1], id="a JSON list"),
        pytest.param(b"\n".join([json.dumps(yaml.safe_load(GOOD)).encode()] * 3), [1, 2, 3], id="one JSON a line"),
        pytest.param(GOOD.encode("utf-16"), [2], id="UTF-16, as PowerShell writes it"),
    ],
)
def test_the_forms_in_which_tools_write_objects_are_read(lint: Any, content: bytes, lines: list[int]) -> None:
    Path("objects").write_bytes(content)
    status, out, _ = lint(options=("objects", "-o", "json"))
    assert status == 0
    objects = json.loads(out)["objects"]
    assert [entry["line"] for entry in objects] == lines
    assert {entry["verdict"] for entry in objects} == {"allowed"}


GPU_SPEC = 'containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: "1"}}}]'
NODES = "template: {spec: {taints: [{key: nvidia.com/gpu, effect: NoSchedule}]}}"


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        pytest.param("gpuType: nvidia.com/gpu", "spec.gpuType", id="a type"),
        pytest.param("requestGPU: 1", "spec.requestGPU", id="a number"),
        pytest.param("device: nvidia.com/mig-1g.10gb", "spec.device", id="a resource"),
        pytest.param("worker: {image: nvcr.io/nvidia/pytorch:24.01}", "spec.worker.image", id="an image"),
        pytest.param(f"{NODES}, limits: {{nvidia.com/gpu: 8}}", "spec.limits[nvidia.com/gpu]", id="nodes"),
        pytest.param('a: {template: {metadata: {annotations: {gpu-fraction: "2"}}}}',
            "spec.a.template.metadata.annotations[gpu-fraction]", id="a template"),
        pytest.param(f"groups: [{{my-role: {{template: {{spec: {{{GPU_SPEC}}}}}}}}}]",
            "spec.groups[0][my-role].template.spec.containers[0].resources.limits[nvidia.com/gpu]",
            id="in lists and maps"),
        pytest.param("requestGPU: 0, image: nginx, gpustat: x", "", id="none"),
        pytest.param(NODES, "", id="a taint for nodes"),
    ],
)  # fmt: skip
def test_an_object_of_an_unknown_kind_that_names_a_gpu_is_not_checked(lint: Any, spec: str, place: str) -> None:
    text = f"apiVersion: nvidia.com/v1\nkind: Own\nmetadata: {{name: own}}\nspec: {{{spec}}}"
    status, out, _ = lint(text, options=("--fail-on", "unchecked"))
    assert (status, f"not checked ({place} names a GPU; " in out) == (int(bool(place)), bool(place))


MANIFEST = "apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {gpu-fraction: '2'}}, spec: {" + (
    "schedulerName: example-scheduler, containers: [{name: main, image: x}]}"
)
RESOURCES = f'templates: [{{name: a, resource: {{action: create, manifest: "{{{MANIFEST}}}"}}}}]'


@pytest.mark.parametrize(
    ("group", "kind", "spec"),
    [
        ("workload.codeflare.dev/v1beta2", "AppWrapper", f"components: [{{template: {{{MANIFEST}}}}}]"),
        ("argoproj.io/v1alpha1", "Workflow", RESOURCES),
        ("argoproj.io/v1alpha1", "WorkflowTemplate", RESOURCES),
        ("argoproj.io/v1alpha1", "ClusterWorkflowTemplate", RESOURCES),
        ("argoproj.io/v1alpha1", "CronWorkflow", f"workflowSpec: {{{RESOURCES}}}"),
    ],
)
def test_objects_within_an_object_are_reviewed(lint: Any, group: str, kind: str, spec: str) -> None:
    status, out, _ = lint(f"apiVersion: {group}\nkind: {kind}\nmetadata: {{name: w}}\nspec: {{{spec}}}")
    assert status == 1
    assert "0.yaml:4: Pod p: denied\n  metadata.annotations[gpu-fraction]: " in out


def test_an_embedded_manifest_that_is_not_read_is_named(lint: Any) -> None:
    templates = "templates: [{name: a, resource: {manifest: '{{=x: ['}}]"
    text = f"apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {{name: w}}\nspec: {{{templates}}}"
    status, out, _ = lint(text, options=("--fail-on", "unchecked"))
    assert (status, "not checked (spec.templates[*].resource.manifest)" in out) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("kind: [", "0.yaml: line 2", id="broken YAML, with its line"),
        pytest.param("kind: Pod", "0.yaml: line 1: apiVersion", id="not an object"),
        pytest.param("{{- if .Values.x }}\nkind: Pod", "review the output of helm template", id="a template"),
    ],
)
def test_an_unreadable_file_hides_no_verdict(lint: Any, text: str, message: str) -> None:
    status, out, err = lint(text, GOOD)
    assert (status, out) == (2, "1.yaml:2: Pod team/good: allowed\n1 object: 1 allowed\n")
    assert message in err
    document = json.loads(lint(text, GOOD, options=("-o", "json"))[1])
    assert [entry["file"] for entry in document["objects"]] == ["1.yaml"]
    assert message in document["unreadable"][0]


def test_a_configuration_alone_is_checked(lint: Any) -> None:
    Path("config.yaml").write_text(HEAD)
    assert lint(options=("--config", "config.yaml")) == (0, "config.yaml: the configuration is valid\n", "")
    Path("config.yaml").write_text(HEAD + "nope: 1\n")
    status, out, err = lint(options=("--config", "config.yaml"))
    assert (status, out) == (2, "")
    assert "nope" in err


HOSTILE = {
    "aliases-of-aliases": bomb(12, "[{}]"),
    "merges-of-merges": bomb(12, "{{<<: [{}]}}"),
    "deep-nesting": "[" * 1_000_000,
    "a-long-number": "a: " + "9" * 1_000_000,
    "aliases-of-a-long-string": f"a: &a '{'x' * 200_000}'\nb: [{'*a,' * 20_000}]",
    "many-short-values": "[" + "a," * 500_000 + "]",
    "many-documents": "---\n".join([f"a: &a '{'x' * 2_000}'\nb: [{'*a,' * 200}]\n" for _ in range(300)]),
}


def test_a_hostile_file_ends_with_an_error_within_bounds_of_cpu_and_memory(tmp_path: Path) -> None:
    """One process reads all of them and a good one: none spends anything of the bound of the next."""
    for name, text in HOSTILE.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: &name good, namespace: *name}}"
    )

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))

    files = [str(tmp_path / f"{name}.yaml") for name in (*HOSTILE, "good")]
    command = [sys.executable, "-m", "bowline_cli.main", "lint", "--all", *files]
    result = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_memory)
    assert result.returncode == 2, result.stderr[-300:]
    assert [name for name in HOSTILE if f"{name}.yaml" not in result.stderr] == []
    assert "ConfigMap good/good: no pods" in result.stdout
    assert "Traceback" not in result.stderr


def test_names_cannot_control_the_terminal_or_forge_a_line(lint: Any) -> None:
    name = "x: allowed\nforged.yaml: Pod y\x1b]0;title\x07\u202e"
    text = json.dumps({"apiVersion": "v1", "kind": "Pod\x1b[2J", "metadata": {"name": name, "namespace": "a\nb"}})
    _, output, _ = lint(text, options=("--all",))
    assert len(output.splitlines()) == 2
    assert output.replace("\n", "").isprintable()
    assert r"Pod\x1b[2J a\nb/x: allowed\nforged.yaml: Pod y\x1b]0;title\x07\u202e: not checked" in output
