"""`bowline lint` of a folder in which most files are no manifests, as in a repository."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bowline_cli.main import main

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: half}
spec: {schedulerName: bowline, containers: [{name: main, image: x}]}
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


def test_with_strict_a_document_that_is_no_manifest_is_an_error(lint: Lint) -> None:
    status, _, errors = lint(".", "--strict")
    assert status == 2
    assert "package.json: line 1: apiVersion must be given, as a string" in errors


@pytest.mark.parametrize(
    "text", ["kind: Pod\nmetadata: {name: x}\nspec: {}\n# apiVersion:\n", "apiVersion: v1\nkind: Pod\nspec: [\n"]
)
def test_a_manifest_with_a_mistake_in_its_head_or_syntax_is_an_error_in_a_folder_too(lint: Lint, text: str) -> None:
    text = text.replace("# apiVersion:", "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}")
    assert lint(".", files={"deploy/wrong.yaml": text})[0] == 2


def test_a_template_that_is_not_rendered_is_named(lint: Lint) -> None:
    status, lines, _ = lint("deploy", files={"deploy/job.yaml": f"{POD}  ${{SETTINGS}}\n"})
    assert status == 0
    assert lines[1].startswith("deploy/job.yaml: unrendered (line 5, column ")


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
