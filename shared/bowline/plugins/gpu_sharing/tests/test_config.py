"""The plugin's arguments: invalid ones are rejected at start."""

import pytest
from pydantic import ValidationError

from bowline.plugins.gpu_sharing.config import GpuSharingConfig


def test_resources_of_reservation_pods_are_quantities() -> None:
    amounts = {"cpu": "10m", "memory": "128Mi"}
    assert GpuSharingConfig.model_validate({"reservationRequests": amounts}).reservation_requests == amounts


@pytest.mark.parametrize("amount", ["128MB", "", "-1", "a lot"])
def test_values_invalid_in_every_reservation_pod_are_rejected_at_start(amount: str) -> None:
    with pytest.raises(ValidationError) as rejection:
        GpuSharingConfig.model_validate({"reservationRequests": {"memory": amount}})
    (fault,) = rejection.value.errors()
    assert fault["loc"] == ("reservationRequests", "memory")
    assert "must be a quantity" in fault["msg"]
