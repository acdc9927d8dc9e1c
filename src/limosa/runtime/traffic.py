"""How much is each partition used? Rows written and keys read per second, recently.

The balancer uses these rates: they may be slightly wrong, but counting must be almost free.
"""

from collections import defaultdict

from limosa.core.model.keys import PartitionId

HALVED_SECONDS = 60.0
"""Half-life of the rates."""
FORGOTTEN = 0.01


class Traffic:
    """Counters that any thread increments, and rates that one thread computes now and then."""

    def __init__(self) -> None:
        self._written: dict[PartitionId, int] = defaultdict(int)
        self._read: dict[PartitionId, int] = defaultdict(int)
        self.rates: dict[PartitionId, tuple[float, float]] = {}
        """The rates of the last computation."""
        self._measured_at: float | None = None

    def wrote(self, partition: PartitionId, rows: int) -> None:
        # Two threads may lose a count: cheaper than a lock for each write.
        self._written[partition] += rows

    def read(self, partition: PartitionId, keys: int) -> None:
        self._read[partition] += keys

    def measure(self, now: float) -> dict[PartitionId, tuple[float, float]]:
        """Rows written and keys read per second, for each partition in use."""
        before, self._measured_at = self._measured_at, now
        written, self._written = self._written, defaultdict(int)
        read, self._read = self._read, defaultdict(int)
        if before is None or now <= before:
            return self.rates
        kept = 0.5 ** ((now - before) / HALVED_SECONDS)
        rates = {}
        for name in {**self.rates, **written, **read}:
            old = self.rates.get(name, (0.0, 0.0))
            new = (written[name] / (now - before), read[name] / (now - before))
            writes, reads = (kept * o + (1.0 - kept) * n for o, n in zip(old, new, strict=True))
            if max(writes, reads) > FORGOTTEN:
                rates[name] = (writes, reads)
        self.rates = rates
        return rates
