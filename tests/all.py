"""What a release runs: ``python -m tests.all [PART ...]`` runs all parts, or those named, one after the other.

The result of each part, its date and its commit are stored in docs/test-results.json as soon as it has ended; the
table of docs/testing.md is written from that file. A part that was not run keeps its former result. The exit status
is 1 if a part that was run has not passed.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tests.documents import ROOT, present_commit, with_part

PAGE = ROOT / "docs" / "testing.md"
RESULTS = ROOT / "docs" / "test-results.json"
LOGS = ROOT / "build" / "test-all"
BEGIN, END = "<!-- results: `make test-all` writes this -->\n", "<!-- end of results -->\n"
NOT_RUN = "not run"
# pytest's last line, such as "== 3 passed, 1 skipped in 2.00s ==".
_SUMMARY = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)
_LONGEST = 90


@dataclass(frozen=True, slots=True)
class Part:
    """A command, and what it shows."""

    name: str
    command: str
    text: str


PARTS = (
    Part("test", "make test", "everything but the parts below"),
    Part(
        "kubernetes-1.32", "make test-kubernetes VERSION=1.32", "what depends on Kubernetes' version, the oldest one"
    ),
    Part("kubernetes-1.37", "make test-kubernetes VERSION=1.37", "the newest one"),
    Part("faults", "make test-faults", "a reconciler process is killed at every write of a share"),
    Part("storm", "make storm", "10,000 pods while calls fail and leaders die"),
    Part("upgrade", "make test-upgrade", "upgrade and rollback under load"),
    Part(
        "long",
        "make test-long",
        "the pages from install to uninstall, the demo, memory beside large objects, failed upgrades, `helm test`, "
        "rendered text, a plugin's rare mode",
    ),
    Part("node", "make test-node", "a real kubelet, containerd and the image"),
    Part("gpu", "make test-gpu", "a physical GPU; without one only the agent's missing driver"),
    Part("kai", "make test-kai", "KAI-Scheduler decides, the pair carries out"),
    Part("wheel", "make test-wheel", "the way of a plugin's author with the wheel"),
    Part("schedulers", "make test-scheduler-conformance", "the example scheduler, and those with a mistake"),
    Part("simulation", "make simulate SECONDS=3600", "an hour of new seeds"),
    Part("stories", "make simulate-stories", "every fault at every request of every story"),
    Part("mutants", "make mutants", "small defects of the product, each found by a suite"),
    Part("soak", "make soak", "50,000 requests through one process"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part has ended, how long it took, on which day, at which commit."""

    result: str
    minutes: str = ""
    date: str = ""
    commit: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; print and write each result."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m tests.all", description="What a release runs.")
    parser.add_argument("part", nargs="*", choices=[*names, []], metavar="PART", help=f"of {', '.join(names)}")
    chosen = parser.parse_args(arguments).part or names
    LOGS.mkdir(parents=True, exist_ok=True)
    has_failed, commit = False, present_commit()  # before the page differs from it
    for part in PARTS:
        if part.name not in chosen:
            continue
        began = time.monotonic()
        log = LOGS / f"{part.name}.log"
        with log.open("wb") as output:
            code = subprocess.run(
                part.command.split(), cwd=ROOT, stdout=output, stderr=output, check=False
            ).returncode
        result = result_of(code, log.read_text(encoding="utf-8", errors="replace"))
        minutes = f"{(time.monotonic() - began) / 60:.0f} min"
        outcomes = stored_outcomes()
        outcomes[part.name] = Outcome(result, minutes, f"{datetime.now(UTC):%Y-%m-%d}", commit)
        document = {name: asdict(outcome) for name, outcome in outcomes.items()}
        RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        PAGE.write_text(with_outcomes(PAGE.read_text(encoding="utf-8"), outcomes), encoding="utf-8")
        sys.stdout.write(f"{part.name}: {result} ({minutes}; {log})\n")
        sys.stdout.flush()
        has_failed = has_failed or not result.startswith("passed")
    return int(has_failed)


def result_of(code: int, output: str) -> str:
    """Return "passed" or "FAILED" with pytest's numbers, or with the last line; "nothing ran" if all was skipped."""
    numbers = [match[1] for match in _SUMMARY.finditer(output)]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    words = numbers[-1] if numbers else lines[-1][:_LONGEST] if lines else ""
    if code == 0 and numbers and "passed" not in words:
        return f"nothing ran: {words}"
    return f"{'passed' if code == 0 else f'FAILED ({code})'}: {words}"


def stored_outcomes() -> dict[str, Outcome]:
    """Return the last result of each part that was run, by the part's name."""
    return {name: Outcome(**fields) for name, fields in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def with_outcomes(page: str, outcomes: Mapping[str, Outcome]) -> str:
    """Return the page with a row for each part. Raises ValueError for a page without the two comments."""
    lines = ["| command | what it shows | result | took | on | commit |", "|---|---|---|---|---|---|"]
    for part in PARTS:
        outcome = outcomes.get(part.name, Outcome(NOT_RUN))
        result = outcome.result.replace("|", "\\|")
        row = (f"`{part.command}`", part.text, result, outcome.minutes, outcome.date, outcome.commit)
        lines.append(f"| {' | '.join(row)} |")
    return with_part(page, BEGIN, END, "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
