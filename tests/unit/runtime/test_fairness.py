"""Which entry loses its place, and which is next."""

import pytest

from bowline.runtime.fairness import FairPool, FairQueue, peer_of


def test_the_peer_that_holds_the_most_loses_its_oldest_item() -> None:
    pool: FairPool[str] = FairPool(3)
    assert [pool.put("a", item) for item in ("a1", "a2", "a3")] == [[], [], []]
    assert pool.put("b", "b1") == ["a1"]
    assert pool.put("b", "b2") == ["a2"]
    assert sorted(pool.items()) == ["a3", "b1", "b2"]


def test_peers_take_turns_however_much_each_has() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1"):
        queue.put(item[0], item)
    assert [queue.take() for _ in range(5)] == ["a1", "b1", "c1", "a2", "a3"]
    assert not queue
    with pytest.raises(IndexError):
        queue.take()


@pytest.mark.parametrize(
    ("address", "expectation"),
    [
        pytest.param("10.0.0.7", "10.0.0.7", id="IPv4"),
        pytest.param("::ffff:10.0.0.7", "10.0.0.7", id="IPv4 at a socket for both"),
        pytest.param("2001:db8:1:2::1", "2001:db8:1:2::/64", id="IPv6"),
        pytest.param("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64", id="the same network"),
        pytest.param("", "", id="unknown"),
    ],
)
def test_addresses_of_one_network_are_one_peer(address: str, expectation: str) -> None:
    assert peer_of(address) == expectation
