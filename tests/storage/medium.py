"""Which bytes does a disk hold, and what if they change? Tests look at files, and damage them."""

from limosa.simulation.files import MemoryFiles


class MediumFiles(MemoryFiles):
    """Files in memory whose medium a test can inspect and damage."""

    def flip(self, path: str, bit: int) -> None:
        """Flip a bit on the medium; the file counts as synced."""
        with self._guard:
            file = self._file(path)
            file.sync()
            for content in (file.live, file.durable):
                content[bit // 8] ^= 1 << bit % 8

    def truncate(self, path: str, length: int) -> None:
        """Truncate a file on the medium; the file counts as synced."""
        with self._guard:
            file = self._file(path)
            file.sync()
            self._used -= max(0, len(file.live) - length)
            for content in (file.live, file.durable):
                del content[length:]

    def paths(self) -> list[str]:
        """The paths of all files, from the root."""
        with self._guard:
            return [path for path, _ in self._walk()]

    def snapshot(self) -> dict[str, bytes]:
        with self._guard:
            return {path: bytes(file.live) for path, file in self._walk()}
