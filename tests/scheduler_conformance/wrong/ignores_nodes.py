"""Wrong: decides for the first node with room, whatever its taints are and whatever has failed there."""

import runpy
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "scheduler" / "scheduler.py"
scheduler = runpy.run_path(str(EXAMPLE))
config, client = scheduler["config"], scheduler["client"]
scheduler["run"].__globals__["allows"] = lambda pod, node: node["metadata"]["name"] == "gpu-node-0"
scheduler["run"].__globals__["AVOID_S"] = -1

config.load_config()
while True:
    scheduler["run"](client.CoreV1Api(), client.CustomObjectsApi())
    time.sleep(0.2)
