"""The hook for pre-commit, the GitHub action and the job for GitLab do what they say: their scripts are executed."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
GOOD = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
SPEC = "{schedulerName: example-scheduler, containers: [{name: a, imag: x}]}"
BAD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {SPEC}\n"
WARNED = BAD.replace("name: a}\nspec", 'name: a, annotations: {gpu-fracton: "1"}}\nspec').replace("imag:", "image:")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A user's repository."""
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/a b.yaml").write_text(GOOD)
    (tmp_path / "package.json").write_text("{}")
    return tmp_path


def shell(checkout: Path, script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a script as a CI system does, with the command of this environment in the path."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=checkout,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_hook_of_pre_commit_accepts_files_that_are_no_manifests(checkout: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"]) == ("bowline-lint", "python")
    files = "'deploy/a b.yaml' package.json"
    assert shell(checkout, f"{hook['entry']} package.json").returncode == 0
    (checkout / "deploy/a b.yaml").write_text(BAD)
    result = shell(checkout, f"{hook['entry']} {files}")
    assert (result.returncode, "kubernetes/unknown-field" in result.stdout) == (1, True)


def step(name: str) -> tuple[dict[str, Any], str]:
    """Return the inputs' defaults of the action, and the script of a step."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    (action_step,) = [entry for entry in action["runs"]["steps"] if entry["name"] == name]
    assert "${{" not in action_step["run"], "an input in a script is code"
    defaults = {
        variable: action["inputs"][expression.removeprefix("${{ inputs.").removesuffix(" }}")]["default"]
        for variable, expression in action_step["env"].items()
    }
    return defaults, action_step["run"]


@pytest.mark.parametrize(
    ("text", "inputs", "status"),
    [
        (BAD, {}, 1),
        (BAD, {"EXCLUDE": "deploy/a *.yaml\n"}, 2),
        (WARNED, {"FAIL_ON": "warning"}, 1),
        (GOOD, {"PATHS": "deploy/a b.yaml\ndeploy\n", "KUBERNETES_VERSION": "1.32"}, 0),
        (GOOD, {"PATHS": "$(touch injected)"}, 2),
    ],
)
def test_the_action_lints_what_its_inputs_name(
    checkout: Path, text: str, inputs: dict[str, str], status: int
) -> None:
    (checkout / "deploy/a b.yaml").write_text(text)
    programs = checkout / ".runner/bowline-lint/bin"
    programs.mkdir(parents=True)
    (programs / "bowline").symlink_to(BIN / "bowline")
    defaults, script = step("Lint")
    result = shell(checkout, script, **{**defaults, **inputs, "RUNNER_TEMP": str(checkout / ".runner")})
    assert result.returncode == status, result.stderr
    assert not (checkout / "injected").exists()
    if status == 1:
        assert result.stdout.startswith(
            ("::error file=deploy/a b.yaml,line=4,", "::warning file=deploy/a b.yaml,line=3,")
        )


def test_the_action_installs_the_repository_that_it_is_in() -> None:
    _, script = step("Install")
    commands = [shlex.split(line) for line in script.splitlines()]
    assert commands[0][1:] == ["-m", "venv", "$RUNNER_TEMP/bowline-lint"]
    assert commands[1] == ["$RUNNER_TEMP/bowline-lint/bin/pip", "install", "--quiet", "$GITHUB_ACTION_PATH[schema]"]


def test_the_job_of_gitlab_fails_with_the_findings_in_its_log(checkout: Path) -> None:
    job = yaml.safe_load((ROOT / "examples/ci/gitlab-ci.yml").read_text())["manifests"]
    install, lint = job["script"]
    assert install == 'pip install --quiet "$BOWLINE"'
    (checkout / "deploy/a b.yaml").write_text(BAD)
    result = shell(checkout, lint)
    assert (result.returncode, "kubernetes/unknown-field" in result.stdout) == (1, True)
