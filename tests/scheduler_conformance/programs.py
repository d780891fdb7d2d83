"""The scheduler under test: a command, started and killed like a pod's process.

`BOWLINE_SCHEDULER` is the command of any scheduler, or `kai` for KAI-Scheduler; without it the example scheduler is
tested. `BOWLINE_SCHEDULER_NAME` is the schedulerName of its pods. It runs with the kubeconfig of an administrator, in
`KUBECONFIG`.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.process import Launch
from bowline.localcluster.workload import CHECKOUT
from tests.kai.team import QUEUE_LABEL, TEAM, running_kai
from tests.kai.team import SCHEDULER as KAI

SETTING, NAME_SETTING = "BOWLINE_SCHEDULER", "BOWLINE_SCHEDULER_NAME"
EXAMPLE = (sys.executable, str(CHECKOUT / "examples" / "scheduler" / "scheduler.py"))
WRONG = Path(__file__).parent / "wrong"


@dataclass(frozen=True, slots=True)
class Program:
    """A scheduler. ``argv`` is empty for KAI-Scheduler, which is several processes."""

    argv: Sequence[str] = EXAMPLE
    scheduler_name: str = "bowline"
    pod_labels: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, cluster: Cluster) -> Iterator["Processes"]:
        """Run it until the block ends."""
        if not self.argv:
            with running_kai(cluster) as launches:
                yield Processes(cluster, launches)
            return
        env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PYTHONUNBUFFERED": "1"}
        launch = Launch("scheduler", self.argv, cluster.layout.logs / "scheduler.log", CHECKOUT, env)
        cluster.run_process(launch)
        try:
            yield Processes(cluster, [launch])
        finally:
            cluster.process(launch.name).stop()


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a running scheduler."""

    cluster: Cluster
    launches: Sequence[Launch]

    def kill(self) -> None:
        """End them as a node that fails does."""
        for launch in self.launches:
            self.cluster.process(launch.name).kill()

    def start(self) -> None:
        """Start them again."""
        for launch in self.launches:
            self.cluster.run_process(launch)


def chosen_program(environ: Mapping[str, str]) -> Program:
    """Return the scheduler that the user named, or the example scheduler."""
    command = environ.get(SETTING, "")
    if command == "kai":
        return Program((), KAI, {QUEUE_LABEL: TEAM})
    name = environ.get(NAME_SETTING, "bowline")
    return Program(shlex.split(command), name) if command else Program(scheduler_name=name)


def wrong_program(name: str) -> Program:
    """Return one of the schedulers with a mistake."""
    return Program((sys.executable, str(WRONG / f"{name}.py")))
