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
from contextlib import suppress
from pathlib import Path

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import ProviderAnswer
from bowline.localcluster.assets.recipes import GoBuild, Recipe

_REPORT_EVERY_S = 60
_TAIL_LINES = 15
# No debugger reads these programs: the compiler writes no tables for one.
_COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class _FailedError(Exception):
    """Why a build failed; becomes the answer's reason."""


class GoBuilder:
    """The provider `go build`; requires `go` on PATH and a reachable module proxy."""

    name = "go build"

    def __init__(self, progress: Progress, environ: Mapping[str, str]) -> None:
        self._progress = progress
        self._environ = environ

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[ProviderAnswer]:
        """Build module by module; the tools of one module in one run."""
        for group in group_recipes(recipes):
            try:
                programs = self._build(group, work / f"build-{group[0].tool}")
            except _FailedError as failure:
                yield from (ProviderAnswer(recipe, None, str(failure)) for recipe in group)
                continue
            yield from (ProviderAnswer(recipe, path) for recipe, path in zip(group, programs, strict=True))

    def _build(self, group: Sequence[Recipe], folder: Path) -> list[Path]:
        """Build the programs of one module; return their paths, in the order of the recipes."""
        go = shutil.which("go", path=self._environ.get("PATH"))
        if go is None:
            raise _FailedError("there is no `go` on PATH")
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        target = group[0].build
        modules: list[str] = []
        if target.staged:
            modules = staging_modules(self._module_file(go, target, folder))
        (folder / "go.mod").write_text(module_text(target, modules))
        packages = [recipe.build.package for recipe in group]
        tools = ", ".join(f"{recipe.tool} {recipe.version}" for recipe in group)
        self._progress.report(f"building {tools} with Go, once: minutes; `bowline lint FILE` needs none of it")
        command = [go, "build", _COMPILER_FLAGS, "-ldflags", linker_flags(target), "-o", f"{binaries}{os.sep}"]
        self._run([*command, *packages], folder)
        return [binaries / recipe.build.program for recipe in group]

    def _module_file(self, go: str, target: GoBuild, folder: Path) -> str:
        """Return the text of the module's own go.mod, which lists its staging repositories."""
        (folder / "go.mod").write_text("module bowline.local/probe\n")
        output = self._run([go, "mod", "download", "-json", f"{target.module}@{target.version}"], folder)
        try:
            return Path(json.loads(output)["GoMod"]).read_text()
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise _FailedError(f"go mod download gave no go.mod for {target.module}: {error}") from error

    def _run(self, command: Sequence[str], folder: Path) -> str:
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
            with process:
                try:
                    while process.poll() is None:
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(timeout=_REPORT_EVERY_S)
                            break
                        self._progress.report("go is still at work")
                finally:
                    process.kill()
        if process.returncode != 0:
            tail = "\n".join(errors.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise _FailedError(f"`{' '.join(command[:3])} …` ended with {process.returncode}:\n{tail}")
        return log.read_text(errors="replace")


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
