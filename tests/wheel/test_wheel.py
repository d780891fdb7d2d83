"""The wheel: one top-level package, typed, beside an author's packages of any name; and the way of a plugin's author:
new, its own tests and types, check, a pod bound on a local cluster.
"""

import json
import os
import re
import shlex
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bowline.api import names
from tests.waiting import LIMIT_S
from tests.wheel.conftest import Installed

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "first"},
    "spec": {"schedulerName": "mine", "containers": [{"name": "main", "image": "registry.example/app:1"}]},
}
REQUEST = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "first"},
    "spec": {
        "podName": "first",
        "selectedNode": "gpu-node-0",
        "receivedResourceType": "Regular",
        "receivedGPU": {"count": 0, "portion": "0.00"},
    },
}
MYPY = ("-m", "mypy", "--strict")
PROGRAMS = [
    "bowline_webhook",
    "bowline_reconciler",
    "bowline_cli explain",
    "bowline.localcluster",
    "bowline.conformance",
]


def test_it_has_the_four_packages_and_the_chart(installation: Installed) -> None:
    with zipfile.ZipFile(installation.wheel) as archive:
        names = archive.namelist()
    packages = {"bowline", "bowline_webhook", "bowline_reconciler", "bowline_cli"}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {
        "bowline/py.typed",
        "bowline/plugin.py",
        "bowline/chart/Chart.yaml",
        "bowline_webhook/__main__.py",
    } <= set(names)
    assert not [name for name in names if "/tests/" in name and name.endswith(".py")]


def test_packages_of_the_author_may_have_the_names_of_the_folders(installation: Installed, tmp_path: Path) -> None:
    folders = ("shared", "cli", "webhook", "reconciler")
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("WHOSE = 'the author'")
    names = ", ".join(folders)
    program = f"import {names}, bowline_webhook.app, bowline_reconciler.app, bowline_cli.main\n"
    program += f"print({{module.WHOSE for module in ({names})}})"
    result = installation.run("-c", program, cwd=tmp_path)
    assert (result.stdout.strip(), result.stderr) == ("{'the author'}", "")


@pytest.mark.parametrize("module", PROGRAMS)
def test_its_programs_start(installation: Installed, tmp_path: Path, module: str) -> None:
    result = installation.run("-m", *module.split(), "--help", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_local_cluster_of_a_wheel_is_in_the_working_directory(installation: Installed, tmp_path: Path) -> None:
    absent = installation.run("-m", "bowline.localcluster", "status", cwd=tmp_path)
    command = f"{installation.python} -m bowline.localcluster up --data-dir={tmp_path}/.cluster"
    assert (absent.returncode, absent.stdout) == (3, f"no cluster is there; `{command}` starts one\n")


def test_what_needs_a_checkout_says_so_and_what_works_without_one(installation: Installed, tmp_path: Path) -> None:
    demo = installation.run("-m", "bowline.localcluster", "demo", cwd=tmp_path)
    assert demo.returncode == 1
    assert "needs a checkout of Bowline; without one" in demo.stderr
    assert "--values" in demo.stderr
    # What `up` does instead of applying the example's manifests.
    program = "from bowline.localcluster.commands import start_example_scheduler as start; print(start(None))"
    result = installation.run("-c", program, cwd=tmp_path)
    assert (result.returncode, result.stdout.count("\n"), result.stderr) == (0, 1, "")
    assert result.stdout.startswith("no scheduler runs, the example scheduler is only in a checkout")


@dataclass(frozen=True, slots=True)
class Author:
    """A folder with the new distribution, which is installed beside the wheel."""

    installation: Installed
    folder: Path
    environ: Mapping[str, str]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Python in the distribution's folder."""
        command = [str(self.installation.python), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=300
        )


@pytest.fixture(scope="module")
def author(installation: Installed, tmp_path_factory: pytest.TempPathFactory) -> Author:
    """Write the distribution `quota` and install it."""
    folder = tmp_path_factory.mktemp("author")
    environ = {key: value for key, value in os.environ.items() if key.startswith(("BOWLINE_", "HOME", "XDG_"))}
    environ |= {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    result = installation.run("-m", "bowline_cli", "plugin", "new", "quota", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    made = Author(installation, folder / "quota", environ)
    # No registry is needed: everything that it depends on is installed.
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    result = made.run("-m", "pip", "install", *options, ".")
    assert result.returncode == 0, result.stderr
    return made


@pytest.mark.author
def test_a_new_distribution_has_strict_types_and_a_mistake_is_found(author: Author) -> None:
    result = author.run(*MYPY, f"--cache-dir={author.installation.types}", "bowline_quota", "tests")
    assert (result.returncode, result.stdout) == (0, "Success: no issues found in 2 source files\n")
    module = author.folder / "bowline_quota" / "__init__.py"
    text = module.read_text()
    module.write_text(text.replace("return Status.ok()", "return None"))
    result = author.run(*MYPY, f"--cache-dir={author.installation.types}", "bowline_quota")
    module.write_text(text)
    assert (result.returncode, 'got "None", expected "Status"' in result.stdout) == (1, True), result.stdout


@pytest.mark.author
def test_a_new_distribution_passes_its_own_tests_without_a_warning(author: Author) -> None:
    result = author.run("-m", "pytest", "-p", "no:cacheprovider")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"=+ \d+ passed in ", result.stdout.splitlines()[-1])
    assert "arning" not in result.stdout + result.stderr


@pytest.mark.author
def test_a_local_cluster_binds_a_pod_with_the_plugin_and_the_schedulers_own_name(author: Author) -> None:
    (author.folder / "scheduler.yaml").write_text("config: {schedulerNames: [mine]}\n")
    # With --config: the environment of this test has the example plugins' entry points too, without their modules.
    head = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"
    (author.folder / "config.yaml").write_text(f"{head}plugins: [{{name: quota}}]\n")
    access = author.run("-m", "bowline_cli", "plugin", "access", "--config=config.yaml")
    assert access.returncode == 0, access.stderr
    (author.folder / "access.yaml").write_text(access.stdout)
    cluster = ("-m", "bowline.localcluster")
    values = [f"--values={name}.yaml" for name in ("values", "access", "scheduler")]
    try:
        started = author.run(*cluster, "up", *values)
        assert started.returncode == 0, started.stderr
        exports = author.run(*cluster, "env").stdout
        settings = dict(word.split("=", 1) for word in shlex.split(exports) if "=" in word)
        settings["PATH"] = settings["PATH"].replace("$PATH", "/usr/bin:/bin")
        environ = {**author.environ, **settings}
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [POD, REQUEST]})
        apply = ["kubectl", "apply", "--filename=-"]
        subprocess.run(apply, env=environ, input=objects, text=True, check=True, capture_output=True)
        wait = ["kubectl", "wait", "--for=jsonpath={.status.phase}=Succeeded", "bindrequest/first"]
        subprocess.run([*wait, f"--timeout={LIMIT_S:g}s"], env=environ, check=True, capture_output=True)
        read = ["kubectl", "get", "pod", "first", "--output=jsonpath={.spec.nodeName}"]
        assert subprocess.run(read, env=environ, check=True, capture_output=True).stdout == b"gpu-node-0"
        (log,) = (author.folder / ".cluster").rglob("*reconciler*.log")
        assert '"quota"' in log.read_text()
    finally:
        stopped = author.run(*cluster, "down")
    assert stopped.returncode == 0, stopped.stderr
    assert not (author.folder / ".cluster").exists()
    assert author.run(*cluster, "status").returncode == 3
