"""Binaries built by `go build` from the Go module proxy, in a temporary module.

The module only names its requirements; `go` does the rest, with the user's module and build caches. k8s.io/kubernetes
needs an addition: its go.mod replaces its staging repositories by folders that the published module does not contain,
so each is replaced by the repository's own release, numbered v0.x for v1.x. The version is linked in, otherwise the
API server would report v0.0.0-master.

Everything is downloaded by `go`: the proxy, the checksum database and GOFLAGS are the user's.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import Answer
from bowline.localcluster.assets.recipes import GoBuild, Recipe

_REPORT_EVERY_S = 20
_TAIL_LINES = 15
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class _FailedError(Exception):
    """Why a build failed; becomes the answer's reason."""


class GoBuilder:
    """The provider `go build`; requires `go` on PATH and a reachable module proxy."""

    name = "go build"

    def __init__(self, progress: Progress, environ: Mapping[str, str]) -> None:
        self._progress = progress
        self._environ = environ

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[Answer]:
        """Build module by module; the tools of one module in one run."""
        for group in group_recipes(recipes):
            names = ", ".join(recipe.tool for recipe in group)
            try:
                folder = self._build(group, work / f"build-{group[0].tool}", names)
            except _FailedError as failure:
                for recipe in group:
                    yield Answer(recipe, None, str(failure))
                continue
            for recipe in group:
                yield Answer(recipe, folder / recipe.tool)

    def _build(self, group: Sequence[Recipe], folder: Path, names: str) -> Path:
        go = shutil.which("go", path=self._environ.get("PATH"))
        if go is None:
            raise _FailedError("there is no `go` on PATH")
        target = group[0].build
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        modules: list[str] = []
        if target.staged:
            self._progress.report(f"{names} {target.version}: reading the module {target.module}")
            modules = staging_modules(self._module_file(go, target, folder))
        (folder / "go.mod").write_text(module_text(target, modules))
        # The binary of a single package gets the tool's name; of several, each gets its package's name, which for
        # Kubernetes is the same.
        output = binaries if len(group) > 1 else binaries / group[0].tool
        command = [go, "build", "-ldflags", linker_flags(target), "-o", f"{output}{os.sep if len(group) > 1 else ''}"]
        command += [recipe.build.package for recipe in group]
        self._progress.report(f"{names} {target.version}: go build (minutes on a first run)")
        self._run(command, folder, names)
        return binaries

    def _module_file(self, go: str, target: GoBuild, folder: Path) -> str:
        """Return the text of the module's own go.mod, which lists its staging repositories."""
        (folder / "go.mod").write_text("module bowline.local/probe\n")
        output = self._run([go, "mod", "download", "-json", f"{target.module}@{target.version}"], folder, "download")
        try:
            return Path(json.loads(output)["GoMod"]).read_text()
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise _FailedError(f"go mod download gave no go.mod for {target.module}: {error}") from error

    def _run(self, command: Sequence[str], folder: Path, names: str) -> str:
        """Run to the end with progress messages. Returns the output; raises `_FailedError` with its tail."""
        environ = {**self._environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        # Read-only, the default, requires a complete go.sum, which this generated module does not have.
        environ["GOFLAGS"] = f"{self._environ.get('GOFLAGS', '')} -mod=mod".strip()
        log, errors = folder / "stdout.log", folder / "stderr.log"
        with log.open("w") as out, errors.open("w") as err:
            try:
                process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=err)
            except OSError as error:
                raise _FailedError(f"{command[0]} does not run: {error}") from error
            try:
                self._wait(process, names)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if process.returncode != 0:
            tail = "\n".join(errors.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise _FailedError(f"`{' '.join(command[:3])} …` ended with {process.returncode}:\n{tail}")
        return log.read_text(errors="replace")

    def _wait(self, process: subprocess.Popen[bytes], names: str) -> None:
        while True:
            try:
                process.wait(timeout=_REPORT_EVERY_S)
            except subprocess.TimeoutExpired:
                self._progress.report(f"{names}: go is still at work")
            else:
                return


def group_recipes(recipes: Sequence[Recipe]) -> list[list[Recipe]]:
    """Recipes by module and version, in the order of their first mention."""
    groups: dict[tuple[str, str], list[Recipe]] = {}
    for recipe in recipes:
        groups.setdefault((recipe.build.module, recipe.build.version), []).append(recipe)
    return list(groups.values())


def staging_modules(module_file: str) -> list[str]:
    """The modules that a go.mod replaces by folders under ./staging."""
    return re.findall(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/", module_file, re.MULTILINE)


def module_text(target: GoBuild, modules: Sequence[str]) -> str:
    """The go.mod of the temporary module; `v1.36.3` maps every staging repository to `v0.36.3`."""
    # Without the go line (or below 1.17) go loads the requirements of every requirement, including unused modules,
    # which is slow and fails if one of them has vanished.
    lines = ["module bowline.local/assets", "", "go 1.24", "", f"require {target.module} {target.version}", ""]
    twin = re.sub(r"^v1\.", "v0.", target.version)
    lines += [f"replace {name} => {name} {twin}" for name in modules]
    return "\n".join(lines) + "\n"


def linker_flags(target: GoBuild) -> str:
    """Linker flags that strip symbols (a third of the size) and set Kubernetes' release version."""
    flags = ["-s", "-w"]
    if target.staged:
        major, minor, _ = target.version.removeprefix("v").split(".", 2)
        values = {"gitVersion": target.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += [f"-X {package}.{key}={value}" for package in _VERSION_PACKAGES for key, value in values.items()]
    return " ".join(flags)
