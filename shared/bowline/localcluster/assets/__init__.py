"""Supply of the control plane's binaries.

`versions` defines the versions, `recipes` how each binary is downloaded or built, `providers`, `download` and
`gobuild` obtain them, `cache` stores them, `supply` runs the chain. Callers use `supply` only.
"""
