"""What may copy the rows of partitions that move? An option of `limosa serve` and `limosa demo`."""

from enum import StrEnum


class PipelineChoice(StrEnum):
    AUTO = "auto"
    SPARK = "spark"
    THREADS = "threads"
