"""A helm command that does not end: small programs in place of helm."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm

# As Go's runtime does at SIGQUIT.
TRACING = f"""#!{sys.executable} -IS
import os, signal, sys

def trace(*_):
    print("goroutine 1 [select]:", file=sys.stderr, flush=True)
    os._exit(2)

print("creating 3 resource(s)", flush=True)
signal.signal(signal.SIGQUIT, trace)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGQUIT])
while True:
    signal.pause()
"""
SILENT = "#!/bin/sh\nexec sleep 1000\n"


@pytest.fixture(autouse=True)
def _blocked_signal() -> Iterator[None]:
    """A program inherits it: the signal waits until the program is ready for it, however slowly that starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_error_of_a_timeout_has_the_output_and_the_goroutines(tmp_path: Path) -> None:
    helm = Helm(program(tmp_path / "helm", TRACING), timeout_s=0.01)
    with pytest.raises(CommandError) as timeout:
        helm.run(["upgrade", "one"])
    first, *output = str(timeout.value).splitlines()
    assert first.startswith("helm upgrade one has not ended after 0.01 s")
    assert output == ["creating 3 resource(s)", "goroutine 1 [select]:"]


def test_a_program_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bowline.localcluster.helm._TRACE_TIMEOUT_S", 0.01)
    helm = Helm(program(tmp_path / "helm", SILENT), timeout_s=0.01)
    with pytest.raises(CommandError, match="has not ended"):
        helm.run(["upgrade", "one"])
