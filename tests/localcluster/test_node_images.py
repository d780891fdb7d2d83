"""Which image archives are deleted: checkouts share the folder, and import an archive after it was chosen."""

from pathlib import Path

import pytest

from tests.localnode.images import archives_to_delete

NOW = 100_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("ages_s", "expected"),
    [
        pytest.param([], [], id="no archive"),
        pytest.param([9 * HOUR] * 5, [], id="five old ones"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0, HOUR], [], id="a sixth that was used within the hour"),
        pytest.param([9 * HOUR, 1.0, 2.0, 3.0, 4.0, 5.0], [0], id="a sixth that was not"),
    ],
)
def test_archives_of_other_checkouts_are_kept_by_age_and_count(ages_s: list[float], expected: list[int]) -> None:
    used = {Path(f"bowline-{number}.tar"): NOW - age_s for number, age_s in enumerate(ages_s)}
    assert archives_to_delete(used, NOW) == [Path(f"bowline-{number}.tar") for number in expected]
