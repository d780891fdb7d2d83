"""Random words in place of texts in every Python process that has this folder in its PYTHONPATH."""

import atexit
import importlib.util

if importlib.util.find_spec("bowline_webhook") and importlib.util.find_spec("tests"):
    from tests.scrambled import scrambled_texts

    scrambled = scrambled_texts()
    scrambled.__enter__()
    atexit.register(scrambled.__exit__, None, None, None)
