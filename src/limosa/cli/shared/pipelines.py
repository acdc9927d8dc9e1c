"""What may copy the rows of partitions that move? An option of several commands."""

from typing import Literal, TypeAlias

from limosa.errors import BadInput
from limosa.pipeline import java

PipelineChoice: TypeAlias = Literal["auto", "spark", "threads"]


def check_installed(pipeline: PipelineChoice) -> None:
    missing = "" if pipeline == "threads" else java.missing()
    if missing:
        raise BadInput(
            f"this command needs Spark, and {missing}",
            f"run {java.INSTALL} from the checkout, or add --pipeline threads",
        )
