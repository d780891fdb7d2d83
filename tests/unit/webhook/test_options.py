"""The command line."""

from datetime import timedelta
from pathlib import Path

import pytest

from bowline.api.meta import ObjectKey
from bowline_webhook.options import parse_options
from bowline_webhook.tls.files import FilePaths


def test_the_namespace_is_taken_from_the_pod() -> None:
    options = parse_options([], {"POD_NAMESPACE": "here"})
    assert (options.common.namespace, options.ca_secret.namespace) == ("here", "here")
    assert parse_options(["--namespace=there"], {"POD_NAMESPACE": "here"}).common.namespace == "there"


def test_given_options_are_used() -> None:
    options = parse_options(
        [
            *("--listen", "[::1]:1", "--drain", "500ms", "--client-ca-file", "a"),
            *("--tls-cert-file", "c", "--tls-private-key-file", "k"),
            *("--webhook-configuration", "x", "--ca-secret", "s"),
        ],
        {},
    )
    assert str(options.listen) == "[::1]:1"
    assert options.files == FilePaths(Path("c"), Path("k"), Path("a"))
    assert not options.self_signed
    assert options.webhook_configuration == "x"
    assert options.drain == timedelta(milliseconds=500)
    assert options.ca_secret == ObjectKey("default", "s")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        pytest.param(["--listen", "9443"], "must be HOST:PORT", id="an address without a colon"),
        pytest.param(["--drain", "5"], "must be a duration", id="a duration without a unit"),
        pytest.param(["--feature-gates", "A"], "must be NAME=true", id="a gate without a value"),
        pytest.param(["--tls-cert-file", "c"], "go together", id="a certificate without its key"),
        pytest.param(["--tls-private-key-file", "k"], "go together", id="a key without its certificate"),
        pytest.param(["--leaf-life", "1h"], "unrecognized", id="a lifetime of certificates"),
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
