"""Small copies, loads and rows for tests of the pipeline."""

from limosa.core.effects import StartCopy
from limosa.core.model.topology import Replica
from limosa.pipeline.loads import CopyLoad, CopyTarget


def copy(partition: str, source: str = "n1", *targets: str) -> StartCopy:
    return StartCopy(
        partition,
        f"s-{partition}@1",
        1,
        Replica(source, f"{source}-i"),
        tuple(Replica(target, f"{target}-i") for target in targets or ("n2",)),
    )


def load(
    partition: str = "p",
    *targets: str,
    source: str = "n1",
    slices: int = 4,
    bytes: int = 0,
    again: bool = False,
) -> CopyLoad:
    return CopyLoad(
        partition,
        f"s-{partition}@1",
        1,
        CopyTarget(source, f"{source}-i"),
        tuple(CopyTarget(target, f"{target}-i") for target in targets or ("n2",)),
        slices,
        0,
        slices,
        bytes,
        again,
    )
