"""The process: start, rejected configurations, malformed input, graceful shutdown. None of it needs an API server."""

import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from bowline_webhook.hooks import Hook
from bowline_webhook.tls.ca import Leaf, make_authority, sign_leaf, to_pem
from tests.unit.webhook.reviews import encode, pod, review
from tests.waiting import LIMIT_S
from tests.webhook.process import Running, run_failing, running

PLUGINS = Path(__file__).parent / "plugins"
POD = encode(review(pod({"gpu-fraction": "2"})))
SHARE = encode(review(pod({"gpu-fraction": "0.5"})))


@pytest.fixture(scope="module")
def tls_flags(leaf: Leaf, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    (folder / "tls.crt").write_bytes(to_pem([leaf.certificate]))
    (folder / "tls.key").write_bytes(leaf.private_key)
    return f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}"


@pytest.fixture(scope="module")
def trust(leaf: Leaf) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())


@pytest.fixture(scope="module")
def process(tls_flags: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("webhook"), *tls_flags) as process:
        yield process


def connection(process: Running, trust: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", process.port, context=trust, timeout=LIMIT_S)


def post(
    process: Running, trust: ssl.SSLContext, path: str, body: bytes, content_type: str = "application/json"
) -> tuple[int, bytes]:
    client = connection(process, trust)
    try:
        client.request("POST", path, body=body, headers={"Content-Type": content_type})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def test_a_plugin_that_blocks_is_named_and_ends_the_process(
    tls_flags: tuple[str, str], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    """As in the reconciler: no other review is answered meanwhile, and the container's next process goes on."""
    policy = configuration(tmp_path, "plugins: [{name: review_blocks}]")
    with running(tmp_path, *tls_flags, policy, plugins=str(PLUGINS)) as process:
        assert post(process, trust, Hook.VALIDATE_PODS, POD)[0] == 200
        blocking = encode(review(pod({"reviews.example/blocks-for-s": "100"})))
        with pytest.raises((http.client.HTTPException, OSError)):
            post(process, trust, Hook.VALIDATE_PODS, blocking)
        assert process.popen.wait(LIMIT_S) == 1
        log_line = next(line for line in process.lines() if line["message"] == "the event loop is blocked")
    assert (log_line["plugin"], log_line["point"]) == ("review_blocks", "validate_pod")
    assert log_line["object"] == "p"
    assert "time.sleep" in log_line["stack"]


class TestServing:
    def test_with_certificate_files_it_is_ready_without_an_api_server(self, process: Running) -> None:
        process.wait_for_line("answering reviews")
        assert process.get("/readyz") == (200, "ok\n")
        assert process.get("/healthz")[0] == 200

    def test_a_renewed_certificate_is_served_without_a_restart(self, leaf: Leaf, tmp_path: Path) -> None:
        certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
        certificate.write_bytes(to_pem([leaf.certificate]))
        key.write_bytes(leaf.private_key)
        now, life = datetime.now(UTC), timedelta(days=1)
        renewed = sign_leaf(make_authority(now, life), ["127.0.0.1"], now, life)
        with running(tmp_path, f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}") as process:
            process.wait_for_line("answering reviews")
            certificate.write_bytes(to_pem([renewed.certificate]))
            key.write_bytes(renewed.private_key)
            process.wait_for_line("serving the renewed certificate")
            trust = ssl.create_default_context(cadata=to_pem([renewed.signer]).decode())
            assert post(process, trust, Hook.VALIDATE_PODS, POD)[0] == 200
            (end,) = re.findall(
                r'not_after_timestamp_seconds\{certificate="leaf"\} (\S+)', process.get("/metrics")[1]
            )
            assert float(end) == renewed.certificate.not_valid_after_utc.timestamp()

    def test_old_protocols_are_rejected(self, process: Running, leaf: Leaf) -> None:
        context = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with (
            socket.create_connection(("127.0.0.1", process.port)) as plain,
            pytest.raises(ssl.SSLError, match=r"TLS|PROTOCOL|EOF"),
        ):
            context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_no_test_has_crashed_the_process(process: Running) -> None:
    assert not [line for line in process.lines() if "traceback" in line]


class TestNotStarting:
    def test_a_missing_certificate_is_named(self, tmp_path: Path) -> None:
        result = run_failing(
            f"--tls-cert-file={tmp_path / 'no.crt'}", f"--tls-private-key-file={tmp_path / 'no.key'}"
        )
        assert result.returncode == 2
        assert "no.crt: no such file" in result.stderr
        assert "Traceback" not in result.stderr

    @pytest.mark.parametrize("flag", ["--listen", "--metrics-listen"])
    def test_an_address_in_use_is_reported(self, tls_flags: tuple[str, str], flag: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            result = run_failing(*tls_flags, f"{flag}=127.0.0.1:{listener.getsockname()[1]}")
        assert result.returncode == 2
        assert "address already in use" in result.stderr.lower()
        assert "Traceback" not in result.stderr


class TestStopping:
    def test_process_with_a_stop_signal_is_ready_and_answers(
        self, tls_flags: tuple[str, str], trust: ssl.SSLContext, tmp_path: Path
    ) -> None:
        with running(tmp_path, *tls_flags, "--drain=1h") as process:
            process.wait_for_line("answering reviews")
            process.popen.terminate()
            process.wait_for_line("stopping")
            assert process.get("/readyz") == (200, "ok\n")
            assert post(process, trust, Hook.VALIDATE_PODS, POD)[0] == 200
            process.popen.terminate()  # a second signal stops it without draining
            assert process.popen.wait(LIMIT_S) != 0

    def test_the_process_can_be_stopped_while_it_waits_for_credentials(self, tmp_path: Path) -> None:
        with running(
            tmp_path, "--server=https://127.0.0.1:1", f"--token-file={tmp_path / 'none'}", "--drain=0s"
        ) as process:
            line = process.wait_for_line("no credentials yet")
            assert str(tmp_path / "none") in line["error"]
            status, text = process.get("/readyz")
            assert status == 503
            assert text.startswith("certificate: ")
            process.popen.terminate()
            assert process.popen.wait(LIMIT_S) == 0


def configuration(folder: Path, text: str) -> str:
    """Write a configuration with these keys; returns its flag."""
    file = folder / "config.yaml"
    file.write_text(f"apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n{text}\n")
    return f"--config={file}"


def test_mode_warn_counts_and_warns_of_what_it_does_not_deny(
    tls_flags: tuple[str, str], trust: ssl.SSLContext, tmp_path: Path
) -> None:
    with running(tmp_path, *tls_flags, configuration(tmp_path, "admission: {mode: Warn}")) as process:
        response = orjson.loads(post(process, trust, Hook.MUTATE_PODS, POD)[1])["response"]
        assert (response["allowed"], "patch" in response) == (True, False)
        assert any("metadata.annotations[gpu-fraction]" in text for text in response["warnings"])
        share = orjson.loads(post(process, trust, Hook.MUTATE_PODS, SHARE)[1])["response"]
        assert share["patchType"] == "JSONPatch"
        assert 'bowline_admission_not_enforced_total{hook="/mutate/pods"} 1.0' in process.get("/metrics")[1]
        line = process.wait_for_line("not denied: admission.mode is Warn")
        assert line["rules"] == ["gpu_request/fraction-range"]
