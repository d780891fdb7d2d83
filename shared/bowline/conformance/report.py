"""Runs one case and states its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from bowline.conformance.case import Case
from bowline.conformance.scheduler import BrokenRuleError, Scheduler, SchedulerCluster, SchedulerStage
from bowline.localcluster.errors import CommandError, LocalApiError


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case's result; ``why`` is empty if it passed."""

    case: Case[Any]
    why: str = ""

    @property
    def line(self) -> str:
        """One line for the case, and the reason of a failure below it."""
        head = f"{'FAIL' if self.why else 'PASS'} {self.case.name:16} {self.case.promise}"
        return f"{head}\n{indent(self.why, ' ' * 5)}" if self.why else head


def run_case(
    case: Case[SchedulerStage], cluster: SchedulerCluster, argv: Sequence[str], name: str, timeout_s: float
) -> CaseResult:
    """Run the case in a namespace of its own, with the program running for pods of the schedulerName ``name``."""
    why = ""
    with Scheduler.started(cluster.cluster, argv, name) as scheduler:
        stage = SchedulerStage(cluster.cluster, cluster.pair, scheduler, timeout_s)
        cluster.cluster.make_namespace(stage.namespace)
        try:
            stage.run(case)
        except (BrokenRuleError, LocalApiError, CommandError, TimeoutError) as broken:
            why = f"{broken}\n{scheduler.log()}".rstrip()
    # Stopped before, so that nothing is decided meanwhile.
    try:
        stage.clean_up()
    except TimeoutError as error:
        why = why or str(error)
    return CaseResult(case, why)
