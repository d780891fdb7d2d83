"""The command line."""

from pathlib import Path

import pytest

from bowline.kube.config import ApiServer
from bowline_webhook.options import parse_options


def test_the_namespace_is_taken_from_the_pod() -> None:
    options = parse_options([], {"POD_NAMESPACE": "here"})
    assert (options.common.namespace, options.ca_secret.namespace) == ("here", "here")
    assert parse_options(["--namespace=there"], {"POD_NAMESPACE": "here"}).common.namespace == "there"


def test_a_server_has_its_files_and_without_one_it_is_the_pods() -> None:
    flags = ["--server=https://127.0.0.1:1", "--token-file=/token", "--ca-file=/ca.crt"]
    server = ApiServer("https://127.0.0.1:1", Path("/token"), Path("/ca.crt"))
    assert parse_options(flags, {}).common.api_server == server
    assert parse_options([], {}).common.api_server is None


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        *(
            pytest.param([f"--server={url}"], f"{url!r} must be an http or https URL", id=url)
            for url in ("ftp://host", "https://", "127.0.0.1:6443")
        ),
        pytest.param(["--listen", "9443"], "must be HOST:PORT", id="an address without a colon"),
        pytest.param(["--drain", "5"], "must be a duration", id="a duration without a unit"),
        pytest.param(["--tls-cert-file", "c"], "go together", id="a certificate without its key"),
        pytest.param(["--tls-private-key-file", "k"], "go together", id="a key without its certificate"),
        pytest.param(["--client-allowed-name", "a"], "needs --client-ca-file", id="a name without an authority"),
        pytest.param(["--log-format", "xml"], "invalid choice", id="an unknown format"),
        pytest.param(["--conf", "x"], "unrecognized", id="an abbreviation"),
    ],
)
def test_an_invalid_option_exits_with_2_and_a_message(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments, {})
    assert caught.value.code == 2
    assert part in capsys.readouterr().err
