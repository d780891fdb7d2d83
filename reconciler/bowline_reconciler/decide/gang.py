"""When the pods of a gang are bound: a minimum of them together, or none. Pure.

A pod of a gang is bound only when enough pods of its gang are prepared or bound. That is no transaction: the Bindings
follow one another, and one of them may still fail. Decision 206.
"""

from collections.abc import Collection

from bowline.api.meta import ObjectRef, ObjectUID


def is_complete(minimum: int, prepared: Collection[ObjectUID], bound: Collection[ObjectUID]) -> bool:
    """Return whether the prepared pods of a gang may be bound. A pod that is in both collections counts once.

    The collections have no duplicates. Their pods are only compared if the sizes do not decide: each pod of a waiting
    gang asks.
    """
    if len(prepared) >= minimum:
        return True
    if len(prepared) + len(bound) < minimum:
        return False
    return len({*prepared, *bound}) >= minimum


def incomplete_message(gang: ObjectRef, minimum: int) -> str:
    """Return what the pods of an incomplete gang wait for.

    Without a count, which changes with every pod: each new message of a wait is written and reported.
    """
    return (
        f"fewer than {minimum} pods of {gang.kind} {gang.key} are prepared or bound; its pods are bound when as many "
        "as it requires are"
    )
