"""Amounts of memory and parts of a device."""

from decimal import Decimal

import pytest

from bowline.plugins.nv_fractions.amounts import portion_of


@pytest.mark.parametrize(
    ("text", "portion"),
    [
        *(("0.5", "0.5"), ("5e-1", "0.5"), (".5", "0.5"), ("0", None), ("-1", None), ("nan", None), ("inf", None)),
        *((" 0.5", None), ("0_5", None), ("", None), ("1" * 33, None), ("\u0660.\u0665", None)),
    ],
)
def test_portion_of(text: str, portion: str | None) -> None:
    assert portion_of(text) == (Decimal(portion) if portion else None)
