"""The webhook's own listener over TLS, in this process, and a client that trusts it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from bowline_webhook.tls.ca import Leaf, make_authority, sign_leaf
from tests.webhook.served import Served, served


@pytest.fixture(scope="session")
def leaf() -> Leaf:
    """A certificate for the loopback address."""
    now, life = datetime.now(UTC), timedelta(days=1)
    return sign_leaf(make_authority(now, life), ["127.0.0.1"], now, life)


@pytest.fixture
async def listener(leaf: Leaf) -> AsyncIterator[Served]:
    """A listener whose chain modifies pods and denies those that are marked for it."""
    async with served(leaf) as listener:
        yield listener
