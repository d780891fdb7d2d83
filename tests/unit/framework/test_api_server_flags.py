"""The flags of the API server's address and credentials."""

import argparse
from pathlib import Path

import pytest

from bowline.framework.options import add_api_server, api_server
from bowline.kube.config import ApiServer


def parse(*arguments: str) -> ApiServer | None:
    parser = argparse.ArgumentParser()
    add_api_server(parser)
    return api_server(parser.parse_args(arguments))


def test_without_a_server_it_is_the_pods() -> None:
    assert parse() is None


def test_a_server_has_its_files() -> None:
    server = parse("--server=https://127.0.0.1:1", "--token-file=/token", "--ca-file=/ca.crt")
    assert server == ApiServer("https://127.0.0.1:1", Path("/token"), Path("/ca.crt"))


@pytest.mark.parametrize("url", ["ftp://host", "https://", "127.0.0.1:6443"])
def test_a_server_is_a_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(f"--server={url}")
    assert f"{url!r} must be an http or https URL" in capsys.readouterr().err
