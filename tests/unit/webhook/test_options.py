"""The command line."""

from datetime import timedelta
from pathlib import Path

import pytest

from webhook.options import parse_options


def test_without_arguments_everything_has_a_default() -> None:
    options = parse_options([], {})
    assert (str(options.listen), str(options.metrics_listen)) == (":9443", ":8080")
    assert (options.config, options.kubeconfig, options.tls_files) == (None, None, None)
    assert (options.webhook_configurations, options.service_name) == (("bowline-webhook",), "bowline-webhook")
    assert options.namespace == ""
    assert options.drain == timedelta(seconds=8)


def test_the_namespace_comes_from_the_pod() -> None:
    assert parse_options([], {"POD_NAMESPACE": "here"}).namespace == "here"
    assert parse_options(["--namespace=there"], {"POD_NAMESPACE": "here"}).namespace == "there"


def test_what_is_given_is_taken() -> None:
    options = parse_options(
        [
            *("--listen", "[::1]:1", "--metrics-listen", "127.0.0.1:0", "--drain", "500ms"),
            *("--tls-cert-file", "c", "--tls-private-key-file", "k", "--feature-gates", "A=true"),
            *("--webhook-configuration", "x", "--webhook-configuration", "y", "--webhook-configuration", "x"),
        ],
        {},
    )
    assert str(options.listen) == "[::1]:1"
    assert options.tls_files == (Path("c"), Path("k"))
    assert options.webhook_configurations == ("x", "y")
    assert options.drain == timedelta(milliseconds=500)
    assert options.feature_gates == {"A": True}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        pytest.param(["--listen", "9443"], "must be HOST:PORT", id="an address without a colon"),
        pytest.param(["--drain", "5"], "must be a duration", id="a duration without a unit"),
        pytest.param(["--feature-gates", "A"], "must be NAME=true", id="a gate without a value"),
        pytest.param(["--tls-cert-file", "c"], "go together", id="a certificate without its key"),
        pytest.param(["--tls-private-key-file", "k"], "go together", id="a key without its certificate"),
        pytest.param(["--log-format", "xml"], "invalid choice", id="an unknown format"),
        pytest.param(["--conf", "x"], "unrecognized", id="an abbreviation"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_a_sentence(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments, {})
    assert caught.value.code == 2
    assert part in capsys.readouterr().err
