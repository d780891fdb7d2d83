"""Builds from the module proxy: the temporary module, and the error of a failing `go`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bowline.localcluster.assets.gobuild import (
    Estimate,
    GoBuilder,
    group_recipes,
    linker_flags,
    module_text,
    staging_modules,
    stale_packages,
)
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import ProviderAnswer
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Platform, Recipe, Tool, recipe_for
from bowline.localcluster.assets.versions import release_for
from tests.localcluster.conftest import MakeScript

GO_MOD = """module k8s.io/kubernetes

go 1.26.0

require (
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
)

replace k8s.io/kubectl => ./staging/src/k8s.io/kubectl
replace example.com/other => ../other
"""


# `go` as a script: a listing of two packages, then a binary per package, with the name that `go build` gives it.
GO = """
case "$1" in list) printf 'std 3\\n\\nown 1\\n'; exit;; esac
while [ "$1" != -o ]; do shift; done
folder=$2; shift 2
for package; do
    name=${package##*/}; [ "$name" != v3 ] || name=server
    echo "$package" > "$folder$name"
done
"""


def recipes(*tools: Tool) -> list[Recipe]:
    release = release_for("1.36", {})
    return [recipe_for(tool, release, Platform("linux", "amd64")) for tool in tools]


def build(progress: Progress, path: str, work: Path, missing: Sequence[Recipe]) -> list[ProviderAnswer]:
    return list(GoBuilder(progress, {"PATH": path}).fetch(missing, work))


def test_staging_repositories_are_read_from_both_forms_of_replace() -> None:
    assert staging_modules(GO_MOD) == ["k8s.io/api", "k8s.io/client-go", "k8s.io/kubectl"]


def test_each_staging_repository_is_replaced_by_its_twin_release() -> None:
    [recipe] = recipes(Tool.APISERVER)
    assert module_text(recipe.build, ["k8s.io/api"]).splitlines() == [
        "module bowline.local/assets",
        "",
        "go 1.24",
        "",
        "require k8s.io/kubernetes v1.36.3",
        "",
        "replace k8s.io/api => k8s.io/api v0.36.3",
    ]


def test_the_version_of_kubernetes_is_linked_in() -> None:
    [recipe] = recipes(Tool.APISERVER)
    flags = linker_flags(recipe.build)
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMinor=36" in flags
    [etcd] = recipes(Tool.ETCD)
    assert linker_flags(etcd.build) == "-s -w"


def test_the_tools_of_one_module_are_built_together() -> None:
    groups = [[recipe.tool for recipe in group] for group in group_recipes(recipes(*CLUSTER_TOOLS))]
    assert groups == [[Tool.ETCD], [Tool.APISERVER, Tool.CONTROLLER_MANAGER, Tool.KUBECTL], [Tool.KWOK]]


def test_a_build_yields_every_program_under_its_tools_name(
    quiet: Progress, tmp_path: Path, make_script: MakeScript
) -> None:
    make_script(tmp_path / "bin" / "go", GO)
    answers = build(quiet, f"{tmp_path / 'bin'}:/bin:/usr/bin", tmp_path, recipes(Tool.ETCD, Tool.KWOK, Tool.HELM))
    assert {answer.recipe.tool: answer.path and answer.path.read_text().strip() for answer in answers} == {
        Tool.ETCD: "go.etcd.io/etcd/server/v3",
        Tool.KWOK: "sigs.k8s.io/kwok/cmd/kwok",
        Tool.HELM: "helm.sh/helm/v4/cmd/helm",
    }


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param("", "0% compiled", id="nothing-yet-no-estimate"),
        pytest.param(
            "go: downloading x\nstd\nstd",
            "50% compiled, about 106 s remain; `bowline lint FILE` needs none of it",
            id="half",
        ),
        pytest.param("std\nown", "compiled, linking", id="all"),
    ],
)
def test_the_progress_of_a_build_names_the_time_that_remains(output: str, expected: str) -> None:
    sizes = stale_packages("std 3\n\nown 3\n")
    assert Estimate(sizes, programs=1).text([(0.0, ""), (100.0, output)]) == expected


def test_the_remaining_time_is_that_of_the_last_minute() -> None:
    sizes = {f"p{number}": 1 for number in range(10)}
    half, more = "\n".join(list(sizes)[:5]), "\n".join(list(sizes)[:6])
    text = Estimate(sizes, programs=0).text([(100.0, half), (160.0, more)])
    assert text.startswith("60% compiled, about 240 s remain")


def test_without_a_go_toolchain_every_tool_fails_with_that_reason(quiet: Progress, tmp_path: Path) -> None:
    answers = build(quiet, str(tmp_path), tmp_path, recipes(Tool.ETCD, Tool.KWOK))
    assert [(answer.path, answer.reason) for answer in answers] == [(None, "there is no `go` on PATH")] * 2


def test_a_failing_build_quotes_the_end_of_the_compilers_output(
    quiet: Progress, tmp_path: Path, make_script: MakeScript
) -> None:
    make_script(tmp_path / "bin" / "go", "echo 'proxy.golang.org: connection refused' >&2; exit 3")
    [answer] = build(quiet, f"{tmp_path / 'bin'}:/bin:/usr/bin", tmp_path, recipes(Tool.ETCD))
    assert answer.path is None
    assert "ended with 3" in answer.reason
    assert "connection refused" in answer.reason


def test_one_failing_module_does_not_delay_the_others(
    quiet: Progress, tmp_path: Path, make_script: MakeScript
) -> None:
    make_script(tmp_path / "bin" / "go", 'case "$*" in *etcd*) exit 1;; esac\n' + GO)
    path = f"{tmp_path / 'bin'}:/bin:/usr/bin"
    etcd, kwok = build(quiet, path, tmp_path, recipes(Tool.ETCD, Tool.KWOK))
    assert etcd.path is None
    assert kwok.path is not None
    assert kwok.path.name == "kwok"
    assert kwok.path.read_text() == "sigs.k8s.io/kwok/cmd/kwok\n"


@pytest.mark.parametrize(("given", "expected"), [("-buildvcs=false", "-buildvcs=false -mod=mod"), ("", "-mod=mod")])
def test_the_users_goflags_are_kept(
    quiet: Progress, tmp_path: Path, make_script: MakeScript, given: str, expected: str
) -> None:
    make_script(
        tmp_path / "bin" / "go",
        f'echo "$GOFLAGS|$CGO_ENABLED|$GOWORK" > {tmp_path}/seen\n{GO}',
    )
    environ = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin", "GOFLAGS": given}
    list(GoBuilder(quiet, environ).fetch(recipes(Tool.KWOK), tmp_path))
    assert (tmp_path / "seen").read_text().strip() == f"{expected}|0|off"
