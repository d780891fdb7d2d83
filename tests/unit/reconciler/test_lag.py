"""How far the watch is behind is measured by our own writes, one at a time."""

from datetime import timedelta

from reconciler.observe.lag import WatchLag
from shared.testing.clock import SteppedClock


class Watch:
    """A watch that has come to a version."""

    def __init__(self) -> None:
        self.version = "10"
        self.clock = SteppedClock()
        self.lag = WatchLag(lambda: self.version, self.clock.monotonic)

    def after(self, seconds: float) -> float:
        self.clock.step(timedelta(seconds=seconds))
        return self.lag.seconds()


def test_without_a_write_there_is_nothing_to_be_behind_of() -> None:
    assert Watch().after(100) == 0


def test_a_write_is_followed_until_the_watch_delivers_it() -> None:
    watch = Watch()
    watch.lag.wrote("12")
    assert watch.after(3) == 3
    watch.version = "11"
    assert watch.after(1) == 4
    watch.version = "12"
    assert watch.after(1) == 0


def test_later_writes_do_not_hide_how_old_the_first_one_is() -> None:
    watch = Watch()
    watch.lag.wrote("12")
    watch.after(5)
    watch.lag.wrote("13")
    assert watch.after(1) == 6
    watch.version = "12"
    watch.lag.wrote("14")
    assert watch.after(1) == 1


def test_an_event_before_the_reply_is_no_lag() -> None:
    watch = Watch()
    watch.version = "12"
    watch.lag.wrote("12")
    assert watch.after(5) == 0


def test_a_list_that_is_under_way_counts_as_behind_and_ends_it() -> None:
    watch = Watch()
    watch.lag.wrote("9223372036854775808")
    watch.version = ""
    assert watch.after(5) == 5
    watch.version = "9223372036854775809"
    assert watch.after(1) == 0


def test_a_version_that_is_no_number_is_not_followed() -> None:
    watch = Watch()
    watch.lag.wrote("abc")
    assert watch.after(5) == 0
