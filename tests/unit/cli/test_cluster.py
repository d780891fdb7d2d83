"""Access of commands to a cluster: what is wrong with a kubeconfig or a server is reported with its remedy."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline_cli.cluster import EXIT_UNKNOWN, Api, add_cluster_options, namespace_of, run_connected
from bowline_cli.kubeconfig import load_kubeconfig

FREE_ADDRESS = "https://127.0.0.1:1"
TOKEN = {"token": "secret"}


def kubeconfig(server: str = FREE_ADDRESS, user: dict[str, Any] | None = None) -> str:
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"of-{name}"}} for name in "ab"]
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": TOKEN if user is None else user}],
        "contexts": contexts,
        "current-context": "a",
    }
    return yaml.safe_dump(document)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_cluster_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        pytest.param(None, [], "config: does not exist; pass a valid file with --kubeconfig", id="no file"),
        pytest.param("{", [], "is not YAML at line ", id="not YAML"),
        pytest.param("[]", [], "must hold a mapping; pass", id="not a kubeconfig"),
        pytest.param(kubeconfig(), ["--context=z"], "there is no context 'z'; there are: a, b", id="no such context"),
        pytest.param(kubeconfig(user={}), [], "gives no token and no client certificate", id="no credentials"),
        pytest.param(kubeconfig(), [], f"the API server {FREE_ADDRESS} cannot be reached", id="no server"),
    ],
)
def test_what_is_wrong_is_reported_once_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, arguments: list[str], message: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    options = parse(f"--kubeconfig={file}", *arguments)
    assert run_connected(options, lambda api: pytest.fail("the command ran")) == EXIT_UNKNOWN
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "expectation"), [([], "of-a"), (["--context=b"], "of-b"), (["-n", "x"], "x")])
def test_the_namespace_is_the_option_or_the_context_s(tmp_path: Path, arguments: list[str], expectation: str) -> None:
    file = tmp_path / "config"
    file.write_text(kubeconfig())
    options = parse(f"--kubeconfig={file}", *arguments)
    assert namespace_of(Api(load_kubeconfig([file], options.context)), options) == expectation


def test_kubeconfig_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").write_text(kubeconfig())
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert run_connected(parse(), lambda api: 0) == EXIT_UNKNOWN
    assert "cannot be reached" in capsys.readouterr().err
