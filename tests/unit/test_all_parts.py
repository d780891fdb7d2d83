"""The parts of `make test-all` and the table of their results in docs/testing.md."""

import re

from tests.all import PAGE, PARTS, stored_outcomes, with_outcomes
from tests.documents import ROOT


def test_every_part_is_a_target_and_the_page_has_its_row() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {part.command.split()[1] for part in PARTS} <= targets
    page = PAGE.read_text(encoding="utf-8")
    assert with_outcomes(page, stored_outcomes()) == page, "run a part by `python -m tests.all`"
