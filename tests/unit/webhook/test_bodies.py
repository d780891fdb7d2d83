"""The pure parts of reading a body."""

import pytest

from bowline_webhook.bodies import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, timeout_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2),
        ("500ms", 0.5),
        ("1h", MAX_TIMEOUT_S),
        ("", DEFAULT_TIMEOUT_S),
        ("0s", DEFAULT_TIMEOUT_S),
        ("-1s", DEFAULT_TIMEOUT_S),
        ("soon", DEFAULT_TIMEOUT_S),
        ("9" * 400 + "s", DEFAULT_TIMEOUT_S),
        ("2s&x=1", 2),
    ],
)
def test_the_callers_timeout_is_read_within_bounds(text: str, seconds: float) -> None:
    assert timeout_s(f"/validate/pods?timeout={text}") == seconds
