"""The form of what a BindRequest decides about ResourceClaims, as far as it is read here.

The CRD stores any object there, and the API server validates allocations only where they are written: after they have
been read. Fields that nothing reads are not checked; all are passed on as they are.
"""

from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, create_model

from bowline.api.quantity import parse_quantity

_MOST = Decimal(2**63 - 1)


def _quantity(value: Any) -> Any:
    if not -_MOST <= parse_quantity(value) <= _MOST:
        raise ValueError("must be a quantity of at most 2^63-1")
    return value


class _Form(BaseModel):
    # Strict: a number is no string, as in the API server.
    model_config = ConfigDict(extra="ignore", strict=True, defer_build=True)


def _object(**fields: Any) -> Any:
    """Return the form of an object with these fields, of which each may be absent or null; ``[form]``: a list."""
    kinds = {
        name: GenericAlias(list, tuple(form)) if isinstance(form, list) else form for name, form in fields.items()
    }
    optional: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds.items()}
    return create_model("Form", __base__=_Form, **optional)


_TOLERATION = _object(key=str, operator=str, value=str, effect=str)
_RESULT = _object(
    request=str,
    driver=str,
    pool=str,
    device=str,
    shareID=str,
    adminAccess=bool,
    consumedCapacity=dict[str, Annotated[Any, AfterValidator(_quantity)]],
    tolerations=[_TOLERATION],
    bindingConditions=[str],
    bindingFailureConditions=[str],
)
_EXPRESSION = _object(key=str, operator=str, values=[str])
_TERM = _object(matchExpressions=[_EXPRESSION], matchFields=[_EXPRESSION])
_ALLOCATION = _object(devices=_object(results=[_RESULT]), nodeSelector=_object(nodeSelectorTerms=[_TERM]))
_CLAIM = _object(allocation=_ALLOCATION)
_REQUEST = _object(name=str, tolerations=[_TOLERATION])
_DEVICE_REQUEST = _object(name=str, exactly=_REQUEST, firstAvailable=[_REQUEST])
_MAPPING = _object(resourceName=str)
_EXTENDED_CLAIM = _object(allocation=_ALLOCATION, deviceRequests=[_DEVICE_REQUEST], containerMappings=[_MAPPING])
# The fields of a BindRequest's spec that have allocations; that the spec's own are not null is its model's.
ALLOCATION_FORM = _object(resourceClaimAllocations=[_CLAIM], extendedResourceClaimAllocation=_EXTENDED_CLAIM)
