"""Turns at a limited rate that groups share, in stepped time."""

import pytest

from bowline.runtime.turns import Turns


def test_turns_are_evenly_spaced_in_order() -> None:
    turns: Turns[str] = Turns(qps=10)
    assert [turns.reserve(key, "group", 0.0) for key in "abcd"] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert turns.reserve("d", "group", 0.05) == pytest.approx(0.25), "asked early: its place is unchanged"
    assert [turns.reserve(key, "group", 0.1 * n) for n, key in enumerate("bcd", 1)] == pytest.approx([0, 0, 0])
    assert len(turns) == 0


def test_time_in_which_nobody_waits_is_not_saved() -> None:
    turns: Turns[str] = Turns(qps=10)
    assert turns.reserve("a", "group", 0.0) == 0
    assert [turns.reserve(key, "group", 100.0) for key in "bc"] == pytest.approx([0, 0.1])


def test_groups_take_turns_however_many_keys_each_has() -> None:
    turns: Turns[tuple[str, int]] = Turns(qps=10)
    for number in range(1000):
        turns.reserve(("large", number), "large", 0.0)
    assert turns.reserve(("small", 0), "small", 0.0) == pytest.approx(0.2), "one of the large group is before it"
    assert turns.reserve(("small", 1), "small", 0.0) == pytest.approx(0.4)
    assert turns.reserve(("large", 3), "large", 0.0) == pytest.approx(0.5), "one of each, then two of its own group"
    assert turns.reserve(("small", 0), "small", 0.21) == 0


def test_a_turn_that_nobody_takes_lapses() -> None:
    turns: Turns[str] = Turns(qps=10)
    for key in "abc":
        turns.reserve(key, "group", 0.0)
    assert turns.reserve("d", "group", 1.0) == 0
    assert len(turns) == 2, "those of b and c"
    assert turns.reserve("e", "group", 100.0) == 0
    assert len(turns) == 0
    assert turns.reserve("b", "group", 100.05) == pytest.approx(0.05), "as a new key"
    turns.discard("b", "group")
    turns.discard("unknown", "another")
    assert len(turns) == 0
    assert turns.reserve("f", "group", 100.05) == pytest.approx(0.05)
    turns.clear()
    assert len(turns) == 0
