"""The form of what a BindRequest decides about ResourceClaims, as far as it is read here.

The CRD stores any object there, and the API server validates allocations only where they are written: after they have
been read. Fields that nothing reads are not checked; all are passed on as they are.
"""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bowline.api.quantity import parse_quantity

_MOST = Decimal(2**63 - 1)


def _quantity(value: Any) -> Any:
    if not -_MOST <= parse_quantity(value) <= _MOST:
        raise ValueError("must be a quantity of at most 2^63-1")
    return value


class _Form(BaseModel):
    # Strict: a number is no string, as in the API server.
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", strict=True, defer_build=True)


class _Toleration(_Form):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Result(_Form):
    request: str | None = None
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    share_id: Annotated[str | None, Field(alias="shareID")] = None
    admin_access: bool | None = None
    consumed_capacity: dict[str, Annotated[Any, AfterValidator(_quantity)]] | None = None
    tolerations: list[_Toleration] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None


class _Devices(_Form):
    results: list[_Result] | None = None


class _Expression(_Form):
    key: str | None = None
    operator: str | None = None
    values: list[str] | None = None


class _Term(_Form):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _NodeSelector(_Form):
    node_selector_terms: list[_Term] | None = None


class _Allocation(_Form):
    devices: _Devices | None = None
    node_selector: _NodeSelector | None = None


class _ClaimAllocation(_Form):
    allocation: _Allocation | None = None


class _Request(_Form):
    name: str | None = None
    tolerations: list[_Toleration] | None = None


class _DeviceRequest(_Form):
    name: str | None = None
    exactly: _Request | None = None
    first_available: list[_Request] | None = None


class _Mapping(_Form):
    resource_name: str | None = None


class _ExtendedAllocation(_Form):
    allocation: _Allocation | None = None
    device_requests: list[_DeviceRequest] = []
    container_mappings: list[_Mapping] = []


class AllocationForm(_Form):
    """The fields of a BindRequest's spec that have allocations."""

    resource_claim_allocations: list[_ClaimAllocation] = []
    extended_resource_claim_allocation: _ExtendedAllocation | None = None
