"""Quantities as the API server parses them; tests/api checks each row of the two tables with a real one."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bowline.api.quantity import as_stored, parse_quantity

MAX_BINARY = 2**63 - 1


ACCEPTED = [
    pytest.param("1", "1", id="a plain number"),
    pytest.param(1, "1", id="an integer"),
    pytest.param(2.0, "2", id="a float that JSON wrote as 2.0 or 2e0"),
    pytest.param(1.5e22, "15e21", id="a float that Python writes with an exponent"),
    pytest.param(None, "0", id="null is zero"),
    pytest.param("00012", "12", id="leading zeros"),
    pytest.param("+1", "1", id="a plus sign"),
    pytest.param("-1", "-1", id="a minus sign"),
    pytest.param(".5", "0.5", id="no digit before the point"),
    pytest.param("5.", "5", id="no digit after the point"),
    pytest.param(" 1 ", "1", id="spaces around it"),
    pytest.param("100n", "1e-7", id="nano"),
    pytest.param("500m", "0.5", id="milli"),
    pytest.param("1k", "1000", id="kilo"),
    pytest.param("1E", "1e18", id="exa, not an exponent without digits"),
    pytest.param("1Ki", "1024", id="kibi"),
    pytest.param("1.5Gi", "1610612736", id="a fraction of gibi"),
    pytest.param("0.1Ki", "102.4", id="a binary quantity that is not whole"),
    pytest.param("2Ei", 2 * 2**60, id="exbi"),
    pytest.param("1e3", "1000", id="an exponent"),
    pytest.param("1e+3", "1000", id="a signed exponent"),
    pytest.param("1e-3", "0.001", id="a negative exponent"),
    pytest.param("1e0000003", "1000", id="an exponent with leading zeros"),
    pytest.param("1e400", "1e400", id="more than any float"),
    pytest.param("1e4294967297", "10", id="an exponent beyond 32 bits wraps"),
    pytest.param("9Ei", MAX_BINARY, id="a binary quantity is capped"),
    pytest.param("9" * 5000 + "Gi", MAX_BINARY, id="a very long binary quantity is capped"),
    pytest.param("10E", "1e19", id="a decimal quantity is not capped"),
    pytest.param("0.3n", "1e-9", id="less than a nano is a nano"),
    pytest.param("1e-99999", "1e-9", id="hardly anything is a nano"),
    pytest.param("-1.5n", "-2e-9", id="rounding is away from zero"),
    pytest.param("0e-99999", "0", id="zero in any form"),
    pytest.param("m", "0", id="a suffix alone is zero"),
    pytest.param("e3", "0", id="an exponent alone is zero"),
    pytest.param(".", "0", id="a point alone is zero"),
]


@pytest.mark.parametrize(("quantity", "value"), ACCEPTED)
def test_accepts_what_the_api_server_accepts(quantity: Any, value: Any) -> None:
    assert parse_quantity(quantity) == Decimal(value)


REFUSED = [
    pytest.param("", id="nothing"),
    pytest.param("1K", id="capital kilo"),
    pytest.param("1e", id="an exponent without digits"),
    pytest.param("1e1.5", id="an exponent that is not whole"),
    pytest.param("1e" + "9" * 19, id="an exponent beyond 64 bits"),
    pytest.param("1e" + "9" * 5000, id="an exponent that int refuses"),
    pytest.param("1Ei5", id="a suffix and digits"),
    pytest.param("1 000", id="a space inside"),
    pytest.param("1\n", id="a line break"),
    pytest.param("inf", id="infinity"),
    pytest.param(float("inf"), id="an infinite float, as YAML has it"),
    pytest.param(float("nan"), id="a float that is no number"),
    pytest.param("\u0661", id="a digit of another script"),
    pytest.param(True, id="a boolean"),
    pytest.param([], id="a list"),
]


@pytest.mark.parametrize("quantity", REFUSED)
def test_rejects_what_the_api_server_rejects(quantity: Any) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(quantity)


@pytest.mark.parametrize(
    ("quantity", "stored_quantity"),
    [
        pytest.param("2", "2", id="a whole number is unchanged"),
        pytest.param("1.5", "1.5", id="thousandths are unchanged"),
        pytest.param("0.9999", "1", id="ten-thousandths are rounded up"),
        pytest.param("1.0001", "1.001", id="never down"),
        pytest.param("-1.0001", "-1.001", id="away from zero"),
        pytest.param("1e2147483647", "1e2147483647", id="a giant is not spelled out"),
    ],
)
def test_stored_quantities_have_thousandths(quantity: str, stored_quantity: str) -> None:
    assert as_stored(parse_quantity(quantity)) == Decimal(stored_quantity)


@given(st.text(alphabet="0123456789.eEinumkKMGTP+-_ ", max_size=12))
def test_any_text_is_a_finite_number_or_a_value_error(text: str) -> None:
    try:
        quantity = parse_quantity(text)
    except ValueError:
        return
    assert quantity.is_finite()
