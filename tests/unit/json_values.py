"""Any JSON value, for tests of properties."""

from typing import Any

from hypothesis import strategies as st


def json_values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return values of every JSON type, nested a few levels; objects have these keys."""
    return st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=8,
    )
