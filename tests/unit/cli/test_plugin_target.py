"""The pods of `bowline plugin check --pod`: files that are not read, or have no complete pod, are named."""

from pathlib import Path

import pytest

from bowline_cli.plugin_check import TargetError, pods

POD = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: i}]}\n"


def test_complete_pods_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(f"{POD}---\n{POD}")
    assert [pod["metadata"]["name"] for pod in pods([path])] == ["a", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"\xff\xfe\xff", "cannot be read", id="not UTF-8"),
        pytest.param(b"a: " + b"[" * 5000, "cannot be read", id="nested too deeply"),
        pytest.param(b"kind: Service", "something else than pods", id="another kind"),
        pytest.param(b"kind: Pod\nspec: {containers: [{name: a, image: i}]}", "without metadata.name", id="no name"),
        pytest.param(b"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}", "image", id="no image"),
        pytest.param(b"kind: Pod\nmetadata: {name: a}\nspec: {containers: []}", "a container", id="no container"),
    ],
)
def test_a_file_without_complete_pods_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "pods.yaml"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=f"pods.yaml .*{message}"):
        pods([path])
