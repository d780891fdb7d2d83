"""``python -m bowline_webhook`` as a separate process, for tests."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """A started webhook and its log."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """Return the log so far. A line that is not JSON is an unintended traceback."""
        # The last line may be incomplete.
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    def wait_for_line(self, message: str) -> dict[str, Any]:
        """Wait for a log line with this message."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            entry = next((line for line in self.lines() if line["message"] == message), None)
            if entry is not None:
                return entry
            assert self.popen.poll() is None, self.log.read_text()
            time.sleep(_POLL_S)
        raise AssertionError(f"not logged: {message!r}:\n{self.log.read_text()}")

    @property
    def port(self) -> int:
        """The port that serves reviews."""
        return int(self.wait_for_line("answering reviews")["address"].rpartition(":")[2])

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page of the metrics address."""
        host, _, port = self.wait_for_line("serving probes and metrics")["address"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def command(*arguments: str) -> list[str]:
    """Return the command line, on free ports of the loopback address."""
    listen = ("--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0")
    return [sys.executable, "-m", "bowline_webhook", *listen, *arguments]


def run_failing(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a webhook that must fail to start; returns how it exited."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment()
    )


def environment() -> Mapping[str, str]:
    """Return an environment without a cluster."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "POD_"))}


@contextmanager
def running(folder: Path, *arguments: str, plugins: str = "") -> Iterator[Running]:
    """Run a webhook; at the end it is killed if it still runs. ``plugins``: a folder with a plugin's distribution."""
    log = folder / "webhook.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(command(*arguments), stderr=output, env={**environment(), "PYTHONPATH": plugins})
    try:
        yield Running(popen, log)
    finally:
        popen.kill()
        popen.wait()
