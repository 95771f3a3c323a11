"""When ranks arrived at the positions of one group: the latest and the second latest, for each position."""

from array import array

_FIELDS = 3  # Latest, second latest, count.
_CHUNK_BITS = 8  # As in `align`.
_CHUNK = 1 << _CHUNK_BITS


class Arrivals:
    """Times in seconds since 1970, as each rank's own clock tells them."""

    def __init__(self) -> None:
        self.times: dict[int, array[float]] = {}  # Chunk of 256 positions -> latest, second latest, count of each.
        self.latest: dict[int, array[int]] = {}
        self.first_s = self.last_s = 0.0

    def add(self, rank: int, positions: "array[int]", arrived_s: "array[float]") -> None:
        """Take in one rank's positions in this group and when it came to each; 0 = not recorded."""
        for position, at in zip(positions, arrived_s, strict=True):
            if not at:
                continue
            chunk = position >> _CHUNK_BITS
            times = self.times.get(chunk)
            if times is None:
                times = self.times[chunk] = array("d", bytes(8 * _FIELDS * _CHUNK))
                self.latest[chunk] = array("i", bytes(4 * _CHUNK))
            if not self.first_s or at < self.first_s:
                self.first_s = at
            if at > self.last_s:
                self.last_s = at
            index = (position & (_CHUNK - 1)) * _FIELDS
            if at > times[index]:
                times[index + 1] = times[index]
                times[index] = at
                self.latest[chunk][index // _FIELDS] = rank
            elif at > times[index + 1]:
                times[index + 1] = at
            times[index + 2] += 1

    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return self.last_s - self.first_s

    def positions(self) -> list[tuple[int, int, float, int, float]]:
        """(position, rank that came last, seconds after the one before it, ranks that came, when), ascending."""
        found = []
        for chunk in sorted(self.times):
            times, latest = self.times[chunk], self.latest[chunk]
            for index in range(_CHUNK):
                count = int(times[index * _FIELDS + 2])
                if count > 1:
                    late_s = times[index * _FIELDS] - times[index * _FIELDS + 1]
                    found.append(((chunk << _CHUNK_BITS) + index, latest[index], late_s, count, times[index * _FIELDS]))
        return found
