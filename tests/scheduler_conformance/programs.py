"""The scheduler under test: the example scheduler, one with a mistake, or the one that the environment names.

`BOWLINE_SCHEDULER` is the command of any scheduler, or `kai` for KAI-Scheduler; without it the example scheduler is
tested. `BOWLINE_SCHEDULER_NAME` is the schedulerName of its pods.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bowline.conformance.scheduler import Scheduler
from bowline.localcluster.checkout import EXAMPLES
from bowline.localcluster.cluster import Cluster
from tests.kai.team import QUEUE_LABEL, TEAM, running_kai
from tests.kai.team import SCHEDULER as KAI

SETTING, NAME_SETTING = "BOWLINE_SCHEDULER", "BOWLINE_SCHEDULER_NAME"
# A node where a bind has failed is avoided for a minute otherwise.
EXAMPLE = ("env", "AVOID_S=5", sys.executable, str(EXAMPLES / "scheduler" / "scheduler.py"))
MISTAKES = Path(__file__).parent / "mistakes.py"


@dataclass(frozen=True, slots=True)
class Program:
    """A scheduler for pods of the schedulerName ``name``; ``argv`` is empty for KAI-Scheduler, several processes."""

    argv: Sequence[str] = EXAMPLE
    name: str = "example-scheduler"

    @contextmanager
    def running(self, cluster: Cluster) -> Iterator[Scheduler]:
        """Run it until the block ends."""
        if self.argv:
            with Scheduler.started(cluster, self.argv, self.name) as scheduler:
                yield scheduler
        else:
            with running_kai(cluster) as launches:
                yield Scheduler(cluster, self.name, launches, {QUEUE_LABEL: TEAM})


def chosen_program(environ: Mapping[str, str]) -> Program:
    """Return the scheduler that the user named, or the example scheduler."""
    command = environ.get(SETTING, "")
    if command == "kai":
        return Program((), KAI)
    name = environ.get(NAME_SETTING, "example-scheduler")
    return Program(shlex.split(command), name) if command else Program(name=name)


def wrong_program(name: str) -> Program:
    """Return the scheduler with a mistake of ``mistakes.py``."""
    return Program((sys.executable, str(MISTAKES), name))
