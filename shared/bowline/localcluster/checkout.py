"""What only a checkout has: the examples, `make`, the sources of the image. A wheel has the rest."""

from pathlib import Path

from bowline.localcluster.errors import LocalClusterError

# Of a wheel: the folder that its packages are installed in.
CHECKOUT = Path(__file__).resolve().parents[3]
EXAMPLES = CHECKOUT / "examples"


def is_checkout() -> bool:
    """Whether this package is used from a checkout."""
    return EXAMPLES.is_dir()


def require_checkout(what: str) -> None:
    """Raise LocalClusterError, which names what works without it, unless this is a checkout."""
    if not is_checkout():
        raise LocalClusterError(
            f"{what} needs a checkout of Bowline; without one `python -m bowline.localcluster up` starts a cluster "
            "with the chart, with --values for a plugin or a scheduler of your own"
        )
