"""Fair shares of a limited resource, by a peer: a network address, or a namespace. Pure data, no I/O.

A caller may open any number of connections, and has any number of IPv6 addresses of one network: ``peer_of`` counts a
network as one peer. ``FairPool`` shares places, ``FairQueue`` shares turns. With both, a peer's excess use costs only
that peer. A caller with addresses of many networks is many peers: the user of a pool limits what it may hold then.
"""

import ipaddress
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


def peer_of(address: str) -> str:
    """Return the peer of a network address: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address.partition("%")[0])
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((ip, 64), strict=False))


class FairPool(Generic[T]):
    """Items with a total weight of at most ``size``. An excess displaces items of the peer that holds the most.

    ``victim`` chooses among a peer's items, passed oldest first; by default the oldest is displaced.
    """

    def __init__(self, size: int, victim: Callable[[Iterable[T]], T] | None = None) -> None:
        self._size = size
        self._victim = victim or (lambda items: next(iter(items)))
        self._items: dict[str, dict[T, int]] = {}
        self._weights: dict[str, int] = {}
        self.total = 0

    def put(self, peer: str, item: T, weight: int = 1) -> Collection[T]:
        """Set the weight of a peer's item, adding the item if it is new.

        Returns the displaced items, possibly including ``item``. They have been removed from the pool.
        """
        items = self._items.setdefault(peer, {})
        increase = weight - items.get(item, 0)
        items[item] = weight
        self._weights[peer] = self._weights.get(peer, 0) + increase
        self.total += increase
        surplus = []
        while self.total > self._size:
            largest = max(self._weights, key=self._weights.__getitem__)
            victim = self._victim(self._items[largest])
            self.drop(largest, victim)
            surplus.append(victim)
        return surplus

    def drop(self, peer: str, item: T) -> None:
        """Remove an item, if present."""
        items = self._items.get(peer)
        if items is None or item not in items:
            return
        weight = items.pop(item)
        self.total -= weight
        self._weights[peer] -= weight
        if not items:
            del self._items[peer], self._weights[peer]

    def renew(self, peer: str, item: T) -> None:
        """Make an item its peer's newest, if present."""
        items = self._items.get(peer)
        if items is not None and item in items:
            items[item] = items.pop(item)

    def items(self) -> list[T]:
        """Return all items."""
        return [item for items in self._items.values() for item in items]


class FairQueue(Generic[T]):
    """A queue that serves the peers in turn, and each peer's items in order."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, peer: str, item: T) -> None:
        """Append an item to its peer's."""
        self._items.setdefault(peer, deque()).append(item)

    def take(self) -> T:
        """Remove and return the next item; its peer's next turn is after all others'. Raises IndexError if empty."""
        if not self._items:
            raise IndexError("the queue is empty")
        peer = next(iter(self._items))
        items = self._items.pop(peer)
        item = items.popleft()
        if items:
            self._items[peer] = items
        return item
