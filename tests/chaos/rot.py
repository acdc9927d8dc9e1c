"""How does a disk rot? A bit of a live segment flips, behind the back of the node that holds it."""

from pathlib import Path
from random import Random

from limosa.core.model.topology import Replica
from limosa.errors import LimosaError
from limosa.storage.files import PosixFiles
from limosa.storage.manifest import directory_of, read_manifest
from limosa.storage.segment import Segment
from tests.chaos.cluster import Cluster


def files_of(cluster: Cluster, partition: str, replica: Replica) -> Path:
    held = cluster.directory / replica.node / "volume" / "replicas"
    return held / directory_of(partition, replica.incarnation)


def named_in(directory: Path) -> list[str]:
    """The segments of a replica, as its manifest names them."""
    try:
        manifest = read_manifest(PosixFiles(), str(directory))
    except LimosaError:
        return []
    return [segment.file for table in manifest.tables for segment in table.segments]


def segments_of(cluster: Cluster, partition: str, replica: Replica) -> list[Path]:
    directory = files_of(cluster, partition, replica)
    return [directory / name for name in named_in(directory)]


def toggle(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damage(path: Path, dice: Random | None = None) -> int:
    """Flip a bit in a block of a segment, the first one without dice; returns where."""
    blocks = Segment(PosixFiles(), str(path)).index.blocks
    block = blocks[0] if dice is None else dice.choice(blocks)
    at = block.at + block.size // 2
    toggle(path, at)
    return at
