"""Where the control plane's binaries come from.

`versions` says which, `recipes` how each is downloaded or built, `providers`, `download` and `gobuild`
get them, `cache` keeps them, `supply` runs the chain. Only `supply` is meant for callers.
"""
