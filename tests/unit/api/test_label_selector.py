"""Equal selectors have one text, and overlapping ones are found, however they are written."""

import itertools

import pytest

from bowline.api.label_selector import parse_label_selector

LABELS = [
    {key: value for key, value in zip(("a", "b"), values, strict=True) if value is not None}
    for values in itertools.product((None, "", "x", "y", "z"), repeat=2)
]


@pytest.mark.parametrize(
    ("texts", "canonical"),
    [
        pytest.param(["", "  "], "", id="everything"),
        pytest.param(["pool=a", "pool==a", " pool = a ", "pool in (a)", "pool in (a, a)"], "pool=a", id="one value"),
        pytest.param(["pool=a,tier=gpu", "tier=gpu,pool=a", "pool in (a),tier=gpu"], "pool=a,tier=gpu", id="order"),
        pytest.param(["p in (b,a)", "p in ( a , b )", "p in (a,b,c),p!=c"], "p in (a,b)", id="several values"),
        pytest.param(["p notin (b,a)", "p!=a,p!=b"], "p notin (a,b)", id="none of these"),
        pytest.param(["p!=a", "p notin (a)"], "p!=a", id="not this one"),
        pytest.param(["p,p=a", "p=a"], "p=a", id="redundant presence"),
        pytest.param(["p,p!=a", "p!=a,p"], "p,p!=a", id="present and not this one"),
        pytest.param(["!p", "!p,p!=a"], "!p", id="absent"),
        pytest.param(["example.com/pool=a"], "example.com/pool=a", id="a prefix"),
        pytest.param(["p="], "p=", id="an empty value"),
    ],
)
def test_equal_selectors_have_one_text(texts: list[str], canonical: str) -> None:
    assert {str(parse_label_selector(text)) for text in texts} == {canonical}
    assert str(parse_label_selector(canonical)) == canonical


SELECTORS = ["", "a=x", "a in (x,y)", "a!=x", "a notin (x,y)", "a", "!a", "a=x,b=y", "b", "!b", "a,a!=x", "a=,b!=z"]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(SELECTORS, 2)))
def test_selectors_overlap_where_an_object_fits_both(first: str, second: str) -> None:
    left, right = parse_label_selector(first), parse_label_selector(second)
    common = [labels for labels in LABELS if left.selects(labels) and right.selects(labels)]
    assert left.overlaps(right) is right.overlaps(left) is bool(common)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param('tier="x"', "cannot be understood from", id="quotes"),
        pytest.param("a=x,,b=y", "cannot be understood from ',b=y'", id="an empty requirement"),
        pytest.param("a=x,", "ends with a comma", id="a comma too many"),
        pytest.param("a in x", "cannot be understood", id="no parentheses"),
        pytest.param("a in (x y)", "can be no label's value", id="a blank in a value"),
        pytest.param("a>5", "cannot be understood", id="a comparison"),
        pytest.param("a=x,a=y", "no object can fulfil", id="two values"),
        pytest.param("a=x,!a", "no object can fulfil", id="a value of an absent label"),
    ],
)
def test_unusable_selectors_are_rejected_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="label selector") as error_info:
        parse_label_selector(text)
    assert why in str(error_info.value)
