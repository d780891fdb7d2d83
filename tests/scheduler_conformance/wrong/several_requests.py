"""Wrong: names each request anew, and decides again for a pod that has one."""

import runpy
import time
import uuid
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "scheduler" / "scheduler.py"
scheduler = runpy.run_path(str(EXAMPLE))
config, client = scheduler["config"], scheduler["client"]


class Renaming:
    """Hides the requests from the scheduler, and renames what it creates."""

    def __init__(self) -> None:
        self._api = client.CustomObjectsApi()

    def list_cluster_custom_object(self, **_: object) -> dict[str, list[object]]:
        return {"items": []}

    def create_namespaced_custom_object(self, body: dict, **where: object) -> object:  # type: ignore[type-arg]
        body["metadata"]["name"] += f"-{uuid.uuid4().hex[:5]}"
        return self._api.create_namespaced_custom_object(body=body, **where)


config.load_config()
while True:
    scheduler["run"](client.CoreV1Api(), Renaming())
    time.sleep(0.2)
