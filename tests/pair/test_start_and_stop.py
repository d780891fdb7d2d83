"""Start and stop of the processes: a missing input is reported and awaited, an invalid one ends the start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import pod
from tests.live import LiveCluster
from tests.pair.conftest import PLUGINS, BareReconcilers
from tests.waiting import LIMIT_S

EXITS = """
apiVersion: config.bowline.dev/v1alpha1
kind: BowlineConfiguration
plugins: [{name: pair_exits}, {name: no_such_plugin}]
"""


@pytest.mark.parametrize("process", [("webhook",), ("reconciler",), ("cli", "lint", "examples/manifests")])
def test_each_plugin_that_cannot_be_loaded_is_named(tmp_path: Path, process: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(EXITS)
    result = run(*process, f"--config={config}", PYTHONPATH=str(PLUGINS))
    assert result.returncode == 2
    assert 'plugins[0].name: "pair_exits": cannot be loaded: SystemExit(3)' in result.stderr
    assert 'plugins[1].name: "no_such_plugin"' in result.stderr
    assert "Traceback" not in result.stderr


def run(process: str, *args: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", f"bowline_{process}", *args],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_an_api_server_unavailable_at_start_is_awaited(
    bare_cluster: Cluster, bare_reconcilers: BareReconcilers
) -> None:
    bare_cluster.stop_apiserver()
    process = bare_reconcilers.start("early", is_awaited=False)
    live = LiveCluster(bare_cluster, "default")
    live.until("it answers that it is not ready", lambda: _not_ready(process))
    bare_cluster.start_apiserver()
    process.wait_ready()
    live.create(pod("early"))
    live.request_bind("early")
    live.phase("early", "Succeeded")
    assert process.stop()


def _not_ready(process: LocalProcess) -> str | None:
    try:
        status, text = process.get("/readyz")
    except OSError:
        return None
    return text if status == 503 else None
