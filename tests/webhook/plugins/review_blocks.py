"""A policy whose review of a pod with an annotation blocks the event loop."""

import time
from collections.abc import Iterable

from bowline import AdmissionInfo, AdmissionPlugin, FieldError, Object

BLOCKS = "reviews.example/blocks-for-s"


class Blocks(AdmissionPlugin):
    """Sleeps for as many seconds as the pod says."""

    name = "review_blocks"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        time.sleep(float((pod["metadata"].get("annotations") or {}).get(BLOCKS, 0)))
        return ()
