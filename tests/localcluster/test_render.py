"""From rendered objects to a process: what is copied, rewritten and rejected."""

from pathlib import Path
from typing import Any

import pytest

from bowline.localcluster.errors import RenderError
from bowline.localcluster.render import (
    Contents,
    Plan,
    Source,
    Surroundings,
    container_of,
    expand,
    flag_value,
    plan_process,
    sources_of,
    wants_token,
    with_flag,
)

FOLDER = Path("/run/process")
CONFIG = Source("configmap", "app-config")
TLS = Source("secret", "app-tls")
CONTENTS: Contents = {
    CONFIG: {"config.yaml": b"a: 1", "more.yaml": b"b: 2"},
    TLS: {"tls.crt": b"crt", "tls.key": b"key"},
}
VOLUMES = [
    {"name": "config", "configMap": {"name": "app-config"}},
    {"name": "tls", "secret": {"secretName": "app-tls"}},
    {"name": "scratch", "emptyDir": {}},
]
MOUNTS = [
    {"name": "config", "mountPath": "/etc/app"},
    {"name": "tls", "mountPath": "/etc/app-tls/"},
    {"name": "scratch", "mountPath": "/var/scratch"},
]


def pod(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"containers": [{"name": "app", "command": ["app"], **container}], "volumes": VOLUMES, **spec}


def plan_of(
    container: dict[str, Any], contents: Contents = CONTENTS, flags: dict[str, str] | None = None, **spec: Any
) -> Plan:
    pod_spec = pod(container, **spec)
    surroundings = Surroundings("here", "app-0", FOLDER, "/venv/python", flags or {})
    return plan_process(pod_spec, container_of(pod_spec), contents, surroundings)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        pytest.param(
            "--config=/etc/app/config.yaml", "--config=/run/process/volumes/config/config.yaml", id="after an equals"
        ),
        pytest.param("/etc/app/config.yaml", "/run/process/volumes/config/config.yaml", id="alone"),
        pytest.param("/etc/app", "/run/process/volumes/config", id="the mount path itself"),
        pytest.param(
            "--crt=/etc/app-tls/tls.crt", "--crt=/run/process/volumes/tls/tls.crt", id="a path with a common prefix"
        ),
        pytest.param(
            "--in=/etc/app/a,/etc/app/b",
            "--in=/run/process/volumes/config/a,/run/process/volumes/config/b",
            id="a list",
        ),
        pytest.param(
            "/var/scratch/x:/etc/app/y",
            "/run/process/volumes/scratch/x:/run/process/volumes/config/y",
            id="a search path",
        ),
        pytest.param("/etc/apple/x", "/etc/apple/x", id="a longer name is another path"),
        pytest.param("/var/etc/app/x", "/var/etc/app/x", id="a deeper path is another path"),
        pytest.param("--name=etc/app", "--name=etc/app", id="no path at all"),
    ],
)
def test_mount_paths_in_arguments_and_environment_become_local(argument: str, expected: str) -> None:
    plan = plan_of({"args": [argument], "volumeMounts": MOUNTS, "env": [{"name": "X", "value": argument}]})
    assert plan.argv == ("app", expected)
    assert plan.env == {"X": expected}


def test_the_files_of_mounted_volumes_are_written_and_others_are_not() -> None:
    assert plan_of({"volumeMounts": MOUNTS}).files == {
        FOLDER / "volumes/config/config.yaml": b"a: 1",
        FOLDER / "volumes/config/more.yaml": b"b: 2",
        FOLDER / "volumes/tls/tls.crt": b"crt",
        FOLDER / "volumes/tls/tls.key": b"key",
    }
    only_scratch = plan_of({"volumeMounts": MOUNTS[2:]})
    assert (only_scratch.files, only_scratch.folders) == ({}, (FOLDER / "volumes/scratch",))


def test_items_choose_and_rename_keys() -> None:
    volume = {
        "name": "config",
        "configMap": {"name": "app-config", "items": [{"key": "more.yaml", "path": "x/y.yaml"}]},
    }
    plan = plan_of({"volumeMounts": MOUNTS[:1]}, volumes=[volume])
    assert plan.files == {FOLDER / "volumes/config/x/y.yaml": b"b: 2"}


def test_a_projected_volume_holds_the_files_of_all_its_sources() -> None:
    sources = [
        {"configMap": {"name": "app-config"}},
        {"secret": {"name": "app-tls", "items": [{"key": "tls.crt", "path": "c"}]}},
    ]
    plan = plan_of({"volumeMounts": MOUNTS[:1]}, volumes=[{"name": "config", "projected": {"sources": sources}}])
    assert sorted(path.name for path in plan.files) == ["c", "config.yaml", "more.yaml"]


def test_a_sub_path_is_mounted_as_the_file_it_names() -> None:
    mount = {"name": "config", "mountPath": "/app.yaml", "subPath": "config.yaml"}
    assert plan_of({"args": ["/app.yaml"], "volumeMounts": [mount]}).argv == (
        "app",
        "/run/process/volumes/config/config.yaml",
    )


@pytest.mark.parametrize(
    ("command", "first"),
    [
        pytest.param(["python", "-m", "bowline_webhook"], "/venv/python", id="the image's python"),
        pytest.param(["/usr/bin/python3.12", "x.py"], "/venv/python", id="by its full path"),
        pytest.param(["pythonic"], "pythonic", id="another program"),
    ],
)
def test_the_images_python_becomes_this_one(command: list[str], first: str) -> None:
    assert plan_of({"command": command}).argv == (first, *command[1:])


def test_environment_from_values_fields_and_keys() -> None:
    env = [
        {"name": "PLAIN", "value": "x"},
        {"name": "EMPTY"},
        {"name": "COMPOSED", "value": "$(PLAIN)-$(UNKNOWN)"},
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "app-tls", "key": "tls.key"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "no", "optional": True}}},
    ]
    plan = plan_of({"env": env, "args": ["$(NAME)", "$$(NAME)"]}, serviceAccountName="alice")
    assert plan.env == {
        "PLAIN": "x",
        "EMPTY": "",
        "COMPOSED": "x-$(UNKNOWN)",
        "NAMESPACE": "here",
        "NAME": "app-0",
        "ACCOUNT": "alice",
        "KEY": "key",
    }
    assert plan.argv == ("app", "app-0", "$(NAME)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("$(A)", "1", id="known"),
        pytest.param("x$(A)y$(A)", "x1y1", id="twice"),
        pytest.param("$(B)", "$(B)", id="unknown, unchanged"),
        pytest.param("$$(A)", "$(A)", id="escaped"),
        pytest.param("$A ${A}", "$A ${A}", id="a shell's forms are not Kubernetes'"),
    ],
)
def test_expansion_is_that_of_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        pytest.param(["a", "--f=1", "b"], ["a", "--f=2", "b"], id="replaced in its place"),
        pytest.param(["a", "--f", "1", "b"], ["a", "--f=2", "b"], id="as two words"),
        pytest.param(["a"], ["a", "--f=2"], id="added at the end"),
        pytest.param(["--f=1", "a", "--f=3"], ["--f=2", "a"], id="set once"),
        pytest.param(["--ff=1", "--f-x=1"], ["--ff=1", "--f-x=1", "--f=2"], id="longer names are other flags"),
    ],
)
def test_with_flag(argument: list[str], expected: list[str]) -> None:
    assert with_flag(argument, "--f", "2") == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["--f=1"], "1", id="one word"),
        pytest.param(["--f", "1"], "1", id="two words"),
        pytest.param(["--f=1", "--f=2"], "2", id="the last one counts"),
        pytest.param(["--f="], "", id="empty"),
        pytest.param(["--g=1"], None, id="absent"),
    ],
)
def test_flag_value(argv: list[str], expected: str | None) -> None:
    assert flag_value(argv, "--f") == expected


def test_flags_of_the_surroundings_replace_rendered_ones() -> None:
    plan = plan_of({"args": ["--listen=0.0.0.0:1", "x"]}, flags={"--listen": "127.0.0.1:2", "--server": "k"})
    assert plan.argv == ("app", "--listen=127.0.0.1:2", "x", "--server=k")


def test_every_source_is_named_once() -> None:
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "app-config", "key": "x"}}}]
    pod_spec = pod({"env": env, "volumeMounts": MOUNTS[:2]})
    assert sources_of(pod_spec, container_of(pod_spec)) == [CONFIG, TLS]


@pytest.mark.parametrize(
    ("container", "spec", "words"),
    [
        pytest.param({}, {"initContainers": [{"name": "i"}]}, "init containers", id="an init container"),
        pytest.param({"command": []}, {}, "names no command", id="the image's own command"),
        pytest.param({"envFrom": [{}]}, {}, "envFrom", id="a whole ConfigMap as environment"),
        pytest.param(
            {"env": [{"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}]},
            {},
            "no local counterpart",
            id="a resource field",
        ),
        pytest.param(
            {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]},
            {},
            "needs key 'k' of the secret 'no'",
            id="a missing key",
        ),
        pytest.param({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}, {}, "does not have", id="no such volume"),
        pytest.param(
            {"volumeMounts": MOUNTS[:1]},
            {"volumes": [{"name": "config", "hostPath": {"path": "/"}}]},
            "kind hostPath",
            id="a host path",
        ),
        pytest.param(
            {"volumeMounts": MOUNTS[:1]},
            {"volumes": [{"name": "config", "configMap": {"name": "no"}}]},
            "configmap 'no', which is missing",
            id="a missing ConfigMap",
        ),
        pytest.param(
            {"volumeMounts": MOUNTS[:1]},
            {
                "volumes": [
                    {"name": "config", "configMap": {"name": "app-config", "items": [{"key": "no", "path": "p"}]}}
                ]
            },
            "no key 'no'",
            id="a missing item",
        ),
        pytest.param(
            {"volumeMounts": MOUNTS[:1]},
            {
                "volumes": [
                    {
                        "name": "config",
                        "configMap": {"name": "app-config", "items": [{"key": "more.yaml", "path": "../p"}]},
                    }
                ]
            },
            "outside itself",
            id="a path that leaves the volume",
        ),
    ],
)
def test_unsupported_parts_of_a_pod_are_rejected(container: dict[str, Any], spec: dict[str, Any], words: str) -> None:
    with pytest.raises(RenderError, match=words):
        plan_of(container, **spec)


def test_an_optional_volume_may_be_missing() -> None:
    volume = {"name": "config", "configMap": {"name": "no", "optional": True}}
    assert plan_of({"volumeMounts": MOUNTS[:1]}, volumes=[volume]).files == {}


def test_one_of_several_containers_must_be_named() -> None:
    two = {"containers": [{"name": "a"}, {"name": "b"}]}
    assert container_of(two, "b") == {"name": "b"}
    for name in (None, "c"):
        with pytest.raises(RenderError, match="2 containers"):
            container_of(two, name)


@pytest.mark.parametrize(("spec", "expected"), [({}, True), ({"automountServiceAccountToken": False}, False)])
def test_a_pod_without_a_mounted_token_gets_none(spec: dict[str, Any], expected: bool) -> None:
    assert wants_token(spec) is expected
