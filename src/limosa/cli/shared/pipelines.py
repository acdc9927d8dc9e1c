"""What may copy the rows of partitions that move? An option of several commands."""

from enum import StrEnum

from limosa.errors import BadInput
from limosa.pipeline import java


class PipelineChoice(StrEnum):
    AUTO = "auto"
    SPARK = "spark"
    THREADS = "threads"


def check_installed(pipeline: PipelineChoice) -> None:
    missing = "" if pipeline is PipelineChoice.THREADS else java.missing()
    if missing:
        raise BadInput(
            f"this command needs Spark, and {missing}",
            f"run {java.INSTALL} from the checkout, or add --pipeline threads",
        )
