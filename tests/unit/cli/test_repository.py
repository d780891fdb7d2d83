"""`bowline lint` of a folder in which most files are no manifests, as in a repository."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bowline_cli.main import main

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: half}
spec: {schedulerName: example-scheduler, containers: [{name: main, image: x}]}
"""
WARNED = POD.replace("name: half", 'name: half, annotations: {gpu-fracton: "0.5"}')
FILES = {
    "deploy/pod.yaml": POD,
    "deploy/kustomization.yaml": "resources: [pod.yaml]\n",
    "deploy/overlays/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
    "package.json": '{"name": "x", "version": "1.0.0"}',
    "tsconfig.json": "{ // a comment\n}",
    "values.yaml": "image: {tag: 1}\nkind: x\n",
    "docker-compose.yaml": "services: {web: {image: x}}\n",
    ".github/workflows/ci.yaml": "on: push\njobs: {}\n",
    "node_modules/x/k8s.yaml": "apiVersion: v1\nkind: Pod\nspec: [\n",
    "charts/app/Chart.yaml": "apiVersion: v2\nname: app\nkind: application\n",
    "charts/app/values.yaml": "replicas: 1\n",
    "charts/app/templates/pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {{ .Values.x }}\n{{- if }}\n",
}
Lint = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lint:
    """Run the command on the files of a repository and others; returns exit status, lines and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, files: dict[str, str] | None = None) -> tuple[int, list[str], str]:
        for name, text in {**FILES, **(files or {})}.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        status = main(["lint", *arguments])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


def test_a_repository_with_good_manifests_is_good(lint: Lint) -> None:
    status, lines, errors = lint(".")
    assert (status, errors) == (0, "")
    assert lines[0] == "deploy/pod.yaml:1: Pod half: allowed"
    assert lines[1].startswith("charts/app: the templates of a Helm chart are not rendered")
    assert lines[2].startswith("1 object: 1 allowed; ")
    assert lines[2].endswith(" documents are no manifests; 1 not rendered")


def test_a_named_file_that_is_no_manifest_is_an_error(lint: Lint) -> None:
    status, _, errors = lint("package.json")
    assert status == 2
    assert "package.json: line 1: apiVersion must be given, as a string" in errors


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod\nmetadata: {name: x}\nspec: {}\n# apiVersion:\n",
        "apiVersion: v1\nkind: Pod\nspec: [\n",
        "  apiVersion: v1\n  kind: Pod\n  spec: [\n",
    ],
)
def test_a_manifest_with_a_mistake_in_its_head_or_syntax_is_an_error_in_a_folder_too(lint: Lint, text: str) -> None:
    text = text.replace("# apiVersion:", "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}")
    assert lint(".", files={"deploy/wrong.yaml": text})[0] == 2


def test_a_template_that_is_not_rendered_is_named(lint: Lint) -> None:
    status, lines, _ = lint("deploy", files={"deploy/job.yaml": f"{POD}  ${{SETTINGS}}\n"})
    assert status == 0
    assert lines[1].startswith("deploy/job.yaml: unrendered (line 5, column ")


def test_a_path_that_cannot_be_followed_is_unreadable_and_hides_no_verdict(lint: Lint) -> None:
    Path("circle.yaml").symlink_to("circle.yaml")
    files = {"deploy/kustomization.yaml": "patches: [{path: ../circle.yaml}]\n"}
    status, lines, errors = lint("circle.yaml", "a" * 300, "deploy", files=files)
    assert (status, lines[0]) == (2, "deploy/pod.yaml:1: Pod half: allowed")
    assert [line.partition(": ")[2] for line in errors.splitlines()] == [
        "Too many levels of symbolic links",
        "File name too long",
    ]


def test_what_a_folder_has_and_is_not_read_is_named(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    files, scan = {"deploy/secret/pod.yaml": POD, "elsewhere/pod.yaml": POD}, os.scandir
    lint("deploy", files=files)
    Path("deploy/link").symlink_to("../elsewhere")
    status, lines, _ = lint("deploy", "--fail-on", "unchecked")
    assert (status, lines[2].startswith("deploy/link: unrendered (a link to a folder")) == (1, True)
    Path("deploy/nothing.yaml").symlink_to("removed.yaml")

    def without_permission(path: str) -> Any:
        if path.endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", without_permission)
    status, lines, errors = lint("deploy")
    assert (status, lines[0]) == (2, "deploy/pod.yaml:1: Pod half: allowed")
    assert sorted(errors.splitlines()) == [
        "deploy/nothing.yaml: No such file or directory",
        "deploy/secret: Permission denied",
    ]


@pytest.mark.parametrize("pattern", ["bad", "deploy/bad", "bad/", "*.yaml", "deploy/bad/*"])
def test_excluded_files_and_folders_are_not_read(lint: Lint, pattern: str) -> None:
    files = {"deploy/bad/pod.yaml": POD.replace("image: x", "imag: x")}
    assert lint(".", files=files)[0] == 1
    assert lint(".", "--exclude", pattern, "--allow-empty", files=files)[0] == 0


@pytest.mark.parametrize(
    ("files", "level", "status"),
    [
        ({"deploy/pod.yaml": WARNED}, "error", 0),
        ({"deploy/pod.yaml": WARNED}, "warning", 1),
        ({"deploy/pod.yaml": f"{POD}spec: {{}}\n".replace("spec: {}", "kind: Pod")}, "warning", 1),
        ({}, "warning", 0),
        ({}, "unchecked", 0),
        ({"deploy/job.yaml": f"{POD}  ${{SETTINGS}}\n"}, "warning", 0),
        ({"deploy/job.yaml": f"{POD}  ${{SETTINGS}}\n"}, "unchecked", 1),
        ({"deploy/pod.yaml": POD.replace(", image: x", ", image: x}], nodeName: '${N}', x: [{")}, "unchecked", 1),
        ({"deploy/pod.yaml": WARNED}, "unchecked", 1),
    ],
)
def test_what_fails_the_command_can_be_chosen(lint: Lint, files: dict[str, str], level: str, status: int) -> None:
    assert lint("deploy", "--fail-on", level, files=files)[0] == status


def test_the_annotations_of_github_have_the_line_of_the_field_and_what_was_not_reviewed(lint: Lint) -> None:
    text = POD.replace("half", '"${NAME}"') + "---\n" + POD.replace("{name: half}", "{name: a,\n  labls: {a: b}}")
    status, lines, _ = lint("deploy", "-o", "github", files={"deploy/pod.yaml": text})
    assert status == 1
    assert lines[0].startswith("::error file=deploy/pod.yaml,line=9,title=kubernetes/unknown-field::")
    assert lines[1].startswith("::notice title=not reviewed::deploy/pod.yaml:1: Pod ${NAME}: unrendered")
    assert lines[2] == "2 objects: 1 error, 0 warnings, 1 not reviewed"


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: manager}
spec: {template: {spec: {containers: [{name: manager, image: x}]}}}
"""
WHOLE = DEPLOYMENT.replace("{template: {", "{template: {metadata: {labels: {a: b}}, ")
GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
KUSTOMIZATION = "patches: [{path: patches/manager.yaml}]\n"


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        pytest.param({"config/patch.yaml": DEPLOYMENT}, ("config",), id="neither selector nor labels"),
        pytest.param({"config/kustomization.yaml": KUSTOMIZATION, "config/patches/manager.yaml": WHOLE}, ("config",),
            id="a patch of a kustomization"),
        pytest.param({"config/kustomization.yaml": "patchesStrategicMerge: [patches/manager.yaml]",
            "config/patches/manager.yaml": WHOLE}, ("config/patches/manager.yaml",), id="a patch that is named"),
        pytest.param({"config/patch.yaml": DEPLOYMENT.replace("image: x", f"image: x, {GPU}")},
            ("config", "--require-scheduler"), id="a GPU, and the scheduler in the base"),
        pytest.param({"config/patch.yaml": DEPLOYMENT.replace("image: x", GPU.replace("1", "null"))
            .replace("{containers", "{nodeSelector: {a: null}, containers")},
            ("config",), id="null removes a field"),
        pytest.param({"config/patch.yaml": DEPLOYMENT.replace("image: x", "$patch: delete")
            .replace("{containers", "{$setElementOrder/containers: [{name: manager}], containers")},
            ("config",), id="directives"),
        pytest.param({"config/kustomization.yaml": "commonLabels: {a: b}\nresources: [manager.yaml]\n",
            "config/manager.yaml": WHOLE}, ("config",), id="a resource whose kustomization adds the selector"),
    ],
)  # fmt: skip
def test_a_patch_is_no_object_that_lacks_fields(
    lint: Lint, files: dict[str, str], arguments: tuple[str, ...]
) -> None:
    status, lines, _ = lint(*arguments, "--all", files=files)
    assert status == 0
    assert ": partial (a patch: review the output of kustomize build)" in lines[0]
    _, lines, _ = lint(*arguments)
    reason = "a patch: review the output of kustomize build: 1"
    assert lines[-1] == f"nothing was reviewed: 1 of 1 objects are partial ({reason}); --all lists them"
    assert len(lines) == 2


@pytest.mark.parametrize("metadata", ["foo", "[1]"])
def test_a_patch_with_metadata_of_another_type_is_denied(lint: Lint, metadata: str) -> None:
    text = DEPLOYMENT.replace("{template: {", f"{{template: {{metadata: {metadata}, ")
    status, lines, _ = lint("config", files={"config/patch.yaml": text})
    assert (status, "spec.template.metadata: " in lines[1]) == (1, True)


def test_a_workload_that_no_kustomization_names_is_whole(lint: Lint) -> None:
    files = {"config/kustomization.yaml": KUSTOMIZATION, "config/other.yaml": WHOLE}
    status, lines, _ = lint("config", files=files)
    assert (status, "spec.selector: " in lines[1]) == (1, True)


OTHERS = "---\n".join(POD.replace("half", name).replace("schedulerName: example-scheduler, ", "") for name in "ab")


SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: c}
spec: {predictor: {model: {modelFormat: {name: onnx}}}}
"""


def test_pods_of_other_schedulers_are_one_line(lint: Lint) -> None:
    files = {"others.yaml": OTHERS, "service.yaml": SERVICE}
    counts = "2 of 3 objects are out of scope (scheduler default-scheduler: 2); "
    _, lines, _ = lint("deploy", "others.yaml", files=files)
    assert lines[0] == "deploy/pod.yaml:1: Pod half: allowed"
    assert lines[-1].startswith(f"{counts}--assume-scheduler NAME reviews")
    assert sum("out of scope" in line for line in lines) == 2, "the summary and the line about them"
    assert lint("others.yaml")[1][-1].startswith("nothing was reviewed: 2 of 2 objects")
    status, lines, _ = lint("service.yaml", "--fail-on", "unchecked")
    assert (status, sum("c: out of scope" in line for line in lines)) == (1, 0)
    assert "(scheduler default-scheduler, not checked: the containers of its runtime: 1)" in lines[-1]
    _, lines, _ = lint("deploy", "others.yaml", "--all")
    assert "others.yaml:1: Pod a: out of scope (scheduler default-scheduler)" in lines
    _, lines, _ = lint("deploy", "others.yaml", "-o", "github")
    assert [line for line in lines if "notice" in line] == [f"::notice title=not checked::{lines[0].split('::')[2]}"]


GPU_POD = POD.replace("schedulerName: example-scheduler, ", "").replace("image: x", f"image: x, {GPU}")


def test_a_pod_with_a_gpu_must_have_a_scheduler_of_the_cluster_if_that_is_required(lint: Lint) -> None:
    files = {"gpu.yaml": GPU_POD, "others.yaml": OTHERS}
    assert lint("gpu.yaml", "others.yaml", files=files)[0] == 0
    status, lines, _ = lint("gpu.yaml", "others.yaml", "--require-scheduler")
    assert status == 1
    assert lines[1].startswith("  spec.schedulerName: null: the pod requests a GPU")
    assert "(lint/scheduler)" in lines[1]
    assert lint("deploy/pod.yaml", "--require-scheduler")[0] == 0
    patch = DEPLOYMENT.replace("{containers", "{schedulerName: other, containers").replace("image: x", GPU)
    files = {"gpu.yaml": GPU_POD.replace("gpu: 1", "gpu: 0"), "patch.yaml": patch}
    assert lint("gpu.yaml", "--require-scheduler", files=files)[0] == 0
    assert lint("patch.yaml", "--require-scheduler")[0] == 1


def test_accepted_findings_are_ignored_with_a_reason_in_a_file(lint: Lint) -> None:
    files = {"warned.yaml": WARNED, "gpu.yaml": GPU_POD}
    arguments = ("warned.yaml", "gpu.yaml", "--fail-on", "warning")
    status, lines, _ = lint(*arguments, files=files)
    assert status == 1
    rule = lines[1].rpartition("(")[2].rstrip(")")
    status, lines, _ = lint(*arguments, "--ignore", rule)
    assert (status, "1 finding ignored" in lines[-2]) == (0, True)
    settings = f"ignore:\n  - {rule}  # until the migration ends\nrequireScheduler: true\nexclude: [others]\n"
    status, lines, _ = lint(*arguments, files={".bowline-lint.yaml": settings})
    assert (status, "(lint/scheduler)" in "".join(lines)) == (1, True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("ignore: [gpu_request/fraction-rage]", '"gpu_request/fraction-rage": there is no such rule; did you mean'),
        ("ignore: x", ".bowline-lint.yaml: ignore: "),
        ("requireScheduler: 1", ".bowline-lint.yaml: requireScheduler: 1: must be true or false"),
        ("schedulers: []", ".bowline-lint.yaml: schedulers"),
        ("[", ".bowline-lint.yaml: "),
        ("- a", ".bowline-lint.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_repositorys_decisions_is_an_error(lint: Lint, settings: str, message: str) -> None:
    status, _, errors = lint("deploy", files={".bowline-lint.yaml": settings})
    assert (status, message in errors) == (2, True)


RENDERED = f"---\n# Source: app/templates/pod.yaml\n{POD.replace('image: x', 'imag: x')}"


def test_a_rendered_object_is_at_the_charts_file_or_at_none(lint: Lint) -> None:
    files = {"rendered.yaml": RENDERED}
    status, lines, _ = lint("rendered.yaml", files=files)
    assert (status, lines[0]) == (1, "app/templates/pod.yaml (rendered): Pod half: denied")
    long = {"long.yaml": RENDERED.replace("/pod", f"/{'a' * 300}")}
    for output in ("text", "github"):
        assert lint("long.yaml", "--chart-path", "charts/app", "-o", output, files=long)[0] == 1
    assert lint("rendered.yaml", "--chart-path", "charts/app")[1][0].startswith("charts/app/templates/pod.yaml (")
    (annotation, *_) = lint("rendered.yaml", "-o", "github", "--chart-path", "charts/app")[1]
    assert annotation.startswith("::error file=charts/app/templates/pod.yaml,line=1,")
    (annotation, *_) = lint("rendered.yaml", "-o", "github")[1]
    assert annotation.startswith("::error title=")
    assert "::app/templates/pod.yaml: spec." in annotation


def test_a_key_that_is_given_twice_in_a_rendered_object_has_no_line_of_the_charts_file(lint: Lint) -> None:
    _, lines, _ = lint("twice.yaml", "-o", "json", files={"twice.yaml": f"{RENDERED}kind: Pod\n"})
    (warning,) = json.loads("\n".join(lines))["objects"][0]["warnings"]
    assert (warning["line"], warning["message"].partition(": ")[0]) == (1, "line 7 of what is rendered")


def test_sub_charts_are_rendered_with_their_chart(lint: Lint) -> None:
    files = {
        f"charts/{name}/{file}": "a: b"
        for name in ("app/charts/sub", "other")
        for file in ("Chart.yaml", "templates/x")
    }
    _, lines, _ = lint("charts", files=files)
    assert lines[0].startswith("charts/app, charts/other: the templates of a Helm chart are not rendered")
