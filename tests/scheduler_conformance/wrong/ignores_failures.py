"""Wrong: does nothing about a Failed request, so its pod is never decided again."""

import runpy
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "scheduler" / "scheduler.py"
scheduler = runpy.run_path(str(EXAMPLE))
config, client = scheduler["config"], scheduler["client"]
scheduler["run"].__globals__["react"] = lambda *_: None

config.load_config()
while True:
    scheduler["run"](client.CoreV1Api(), client.CustomObjectsApi())
    time.sleep(0.2)
