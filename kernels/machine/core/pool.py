"""Draws from many items by weight, in a time that hardly grows with their number."""

from typing import Any


class Pool:
    """A binary tree over places: item i is at leaf `size + i`, and each node holds the weight of what is below it."""

    def __init__(self) -> None:
        self.size = 1
        self.sums = [0.0, 0.0]
        self.items: list[Any] = []
        self.places: dict[Any, int] = {}
        self.free: list[int] = []

    @property
    def total(self) -> float:
        return self.sums[1]

    def put(self, item: Any, weight: float) -> None:
        """Add an item, or give it another weight."""
        place = self.places.get(item)
        if place is None:
            if self.free:
                place = self.free.pop()
            else:
                place = len(self.items)
                self.items.append(None)
            self.places[item] = place
            self.items[place] = item
            if place == self.size:
                self._grow()
        self._weigh(place, weight)

    def remove(self, item: Any) -> None:
        place = self.places.pop(item)
        self.items[place] = None
        self.free.append(place)
        self._weigh(place, 0.0)

    def draw(self, at: float) -> Any:
        """The item that `at`, from 0 up to the total, falls on if all lie side by side, as wide as their weights."""
        sums, node = self.sums, 1
        while node < self.size:
            node *= 2
            if at >= sums[node] and sums[node + 1]:
                at -= sums[node]
                node += 1
        return self.items[node - self.size]

    def _weigh(self, place: int, weight: float) -> None:
        sums, node = self.sums, place + self.size
        if sums[node] == weight:
            return
        sums[node] = weight
        while node > 1:
            node >>= 1
            sums[node] = sums[2 * node] + sums[2 * node + 1]

    def _grow(self) -> None:
        weights = self.sums[self.size :]
        self.size *= 2
        self.sums = [0.0] * self.size + weights + [0.0] * len(weights)
        for node in range(self.size - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]
