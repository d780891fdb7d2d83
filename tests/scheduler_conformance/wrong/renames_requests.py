"""Wrong: gives each request a new name, so that a second instance can decide for the same pod."""

import runpy
import time
import uuid
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "scheduler" / "scheduler.py"
scheduler = runpy.run_path(str(EXAMPLE))
config, client = scheduler["config"], scheduler["client"]


class Renaming:
    """The API of custom objects, for a scheduler that does not name its requests after their pods."""

    def __init__(self) -> None:
        self._api = client.CustomObjectsApi()

    def __getattr__(self, method: str) -> Any:
        return getattr(self._api, method)

    def create_namespaced_custom_object(self, body: dict[str, Any], **where: Any) -> Any:
        body["metadata"]["name"] += f"-{uuid.uuid4().hex[:5]}"
        return self._api.create_namespaced_custom_object(body=body, **where)


config.load_config()
while True:
    scheduler["run"](client.CoreV1Api(), Renaming())
    time.sleep(0.2)
