"""Manifest files: from text to objects."""

from pathlib import Path
from typing import Any

import pytest

from bowline_cli.manifests import UnreadableError, parse_manifests
from tests.examples.manifests import read_manifests

POD = "apiVersion: v1\nkind: Pod\n"


def objects(text: str) -> list[dict[str, Any]]:
    return [manifest.object for manifest in parse_manifests("f", text)]


def kinds(text: str) -> list[tuple[str, str]]:
    return [(manifest.group, manifest.kind) for manifest in parse_manifests("f", text)]


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        pytest.param("", [], id="an empty file"),
        pytest.param("# nothing\n---\n---\n", [], id="only separators"),
        pytest.param(POD, [("", "Pod")], id="one document"),
        pytest.param(f"---\n{POD}---\n# empty\n---\n{POD}...\n", [("", "Pod")] * 2, id="several documents"),
        pytest.param('{"apiVersion": "apps/v1", "kind": "Deployment"}', [("apps", "Deployment")], id="JSON"),
        pytest.param('\n\t{"apiVersion": "v1",\n\t"kind": "Pod"}', [("", "Pod")], id="JSON with tabs"),
        pytest.param("{apiVersion: v1, kind: Pod}", [("", "Pod")], id="YAML in flow style"),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}, {apiVersion: apps/v1, kind: Job}]",
            [("", "Pod"), ("apps", "Job")], id="a List is opened"),
        pytest.param("apiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {}}]", [("apps", "Deployment")],
            id="a typed list's items inherit its kind"),
        pytest.param("apiVersion: v1\nkind: List\nitems:\n", [], id="a List without items"),
        pytest.param("apiVersion: x/v1\nkind: AllowList\nspec: {}", [("x", "AllowList")], id="a kind called so"),
    ],
)  # fmt: skip
def test_documents(text: str, expectation: list[tuple[str, str]]) -> None:
    assert kinds(text) == expectation


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "f: line 2, column 1: did not find expected node content", id="half a list"),
        pytest.param(POD + "\tx: 1", "f: line 3, column 1: found a tab", id="a tab"),
        pytest.param(POD + "---\n- a", "f: line 4: must be an object", id="a list, in the second document"),
        pytest.param("text", "f: line 1: must be an object", id="a string"),
        pytest.param("kind: Pod", "f: line 1: apiVersion must be given", id="no apiVersion"),
        pytest.param("apiVersion: v1", "f: line 1: kind must be given", id="no kind"),
        pytest.param("apiVersion: 1\nkind: Pod", "f: line 1: apiVersion must be given, as a string", id="a number"),
        pytest.param('{"apiVersion": "v1", "kind": "\\ud800"}', "f: holds what JSON cannot", id="a lone surrogate"),
        pytest.param(POD + "spec:\n  a: 1\n  ${LIMITS}\n", "review the output of envsubst",
            id="a variable on a line"),
        pytest.param(POD + "x: !custom y", "f: line 3, column 4: could not determine", id="a tag"),
        pytest.param(POD + "x: !!binary aGk=", "f: holds what JSON cannot", id="bytes"),
        pytest.param(POD + "x: .nan", "f: holds what JSON cannot", id="not a number"),
        pytest.param(POD + "x: &a [*a]", "f: line 3, column 4: an alias refers to", id="a circle"),
        pytest.param(POD + "x: " + "[" * 1000, "f: is nested too deeply", id="deep nesting"),
        pytest.param(f'{{"apiVersion": "v1", "kind": "Pod", "x": {"[" * 600}{"]" * 600}}}',
            "f: is nested too deeply", id="deep nesting in JSON"),
        pytest.param("apiVersion: v1\nkind: List\nitems: [1]", "f: line 1, items[0]: must be an object",
            id="an item"),
        pytest.param("apiVersion: v1\nkind: List\nitems: {a: 1}", "items of a List must be a list", id="items"),
        pytest.param("a: \x00", "f: unacceptable character", id="a control character"),
    ],
)  # fmt: skip
def test_unreadable_input_names_file_line_and_error(text: str, message: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_manifests("f", text)
    assert message in str(caught.value)


@pytest.mark.parametrize("form", [f"{POD}x: {{}}", '{{"apiVersion": "v1", "kind": "Pod", "x": {}}}'])
@pytest.mark.parametrize(
    ("number", "sent"), [("3.0", "3"), ("-3.0e+2", "-300"), ("3.5", "3.5"), ("1.0e+300", "1e+300")]
)
def test_a_number_without_a_fraction_is_a_whole_one_as_kubectl_sends_it(number: str, sent: str, form: str) -> None:
    assert [str(manifest["x"]) for manifest in objects(form.format(number))] == [sent]


def test_keys_are_strings_and_anchors_share_nothing() -> None:
    document = objects(POD + "a: &a {x: 1}\nb: *a\n1: {true: z}\n")[0]
    document["a"]["x"] = 2
    assert document["b"] == {"x": 1}
    assert document["1"] == {"true": "z"}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\x80kind", "is not text in UTF-8 or UTF-16 (byte 0)")]
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "pod.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        read_manifests(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{POD}metadata: {{}}\nmetadata: {{name: b}}\n---\n{POD}", 4),
        ('{"apiVersion": "v1", "kind": "Pod",\n"kind": "Pod"}', 2),
    ],
)
def test_of_a_key_that_is_given_twice_the_last_value_counts_and_it_is_noted(text: str, line: int) -> None:
    manifests = parse_manifests("f", text)
    assert [at for manifest in manifests for at, _ in manifest.duplicates] == [line]
    assert manifests[0].object.get("metadata", {"name": "b"}) == {"name": "b"}


LONG = """\
# a comment
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata:
    annotations:
      a.b/c: x
  spec:
    containers:
    - name: a
    - name: b
      resources:
        limits:
          nvidia.com/gpu: 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("metadata.annotations[a.b/c]", 9),
        ("spec.containers[1].resources.limits[nvidia.com/gpu]", 16),
        ("spec.containers[1].resources.requests[x]", 14),
        ("spec.volumes[3]", 10),
        ("spec.containers[9]", 11),
        ("", 5),
    ],
)
def test_a_field_has_the_line_in_which_it_stands_or_that_of_what_is_around_it(path: str, line: int) -> None:
    (manifest,) = parse_manifests("f", LONG)
    assert manifest.line_of(path) == line


@pytest.mark.parametrize(
    ("file", "source", "is_rendered"),
    [
        ("-", "app/templates/pod.yaml", True),
        ("-", "pod.yaml", True),
        ("f", "app/templates/pod.yaml", True),
        ("f", "app/charts/sub/crds/pod.yaml", True),
        ("f", "https://example.com/templates/pod.yaml", False),
        ("f", "the manual", False),
    ],
)
def test_a_rendered_document_has_the_file_that_its_comment_names(file: str, source: str, is_rendered: bool) -> None:
    text = f"---\n# Source: {source}\n{POD}---\n{POD}"
    places = [(manifest.file, manifest.line, manifest.line_of("kind")) for manifest in parse_manifests(file, text)]
    assert places == [(source, 1, 1) if is_rendered else (file, 3, 4), (file, 6, 7)]
