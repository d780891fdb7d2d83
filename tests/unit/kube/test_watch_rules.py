"""How a reflector handles a failure."""

import pytest

from bowline.kube.errors import ApiStatus, Cause, KubeError, NoResponse, from_response, from_status
from bowline.kube.reflector import needs_list

TOO_LARGE = (Cause("ResourceVersionTooLarge", "Too large resource version"),)


@pytest.mark.parametrize(
    ("error", "expectation"),
    [
        pytest.param(NoResponse("reset"), False, id="a broken connection is resumed"),
        pytest.param(from_status(ApiStatus(429)), False, id="a rejected watch, too"),
        pytest.param(from_status(ApiStatus(500)), False, id="an internal error"),
        pytest.param(from_status(ApiStatus(504, causes=TOO_LARGE)), True, id="a version in the future"),
        pytest.param(from_status(ApiStatus(410, "Expired")), True, id="an expired version"),
        pytest.param(from_status(ApiStatus(403, "Forbidden")), True, id="a right that was removed"),
        pytest.param(from_response(404, {}, b"404 page not found"), True, id="a resource that was removed"),
    ],
)
def test_whether_to_list_again(error: KubeError, expectation: bool) -> None:
    assert needs_list(error) is expectation
