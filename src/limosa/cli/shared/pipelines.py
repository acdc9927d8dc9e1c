"""What may copy the rows of partitions that move? An option of several commands."""

from typing import Annotated, Literal, TypeAlias

import typer

from limosa.errors import BadInput
from limosa.pipeline import java

PipelineChoice: TypeAlias = Literal["auto", "spark", "threads"]
SparkMaster = Annotated[
    str,
    typer.Option(
        "--spark-master", help="URL of the Spark master.", show_default="this machine's cores"
    ),
]
SparkSecret = Annotated[
    str | None,
    typer.Option(
        "--spark-secret",
        metavar="FILE",
        help="File with the secret of the Spark cluster (spark.authenticate.secret).",
    ),
]
KeepSparkRunning = Annotated[
    bool,
    typer.Option(
        "--keep-spark-running",
        help="Start Spark with the coordinator, so that no move waits for Java. It takes about "
        "500 MB of memory. Otherwise the first move or run starts it.",
    ),
]
LoadSourcePath = Annotated[
    str,
    typer.Option(
        "--load-source",
        metavar="MODULE:FUNCTION",
        help="Python function that tells automatic runs the load of each partition.",
        show_default="measured bytes, writes and reads",
    ),
]


def check_installed(pipeline: PipelineChoice) -> None:
    missing = "" if pipeline == "threads" else java.missing()
    if missing:
        raise BadInput(
            f"this command needs Spark, and {missing}",
            f"run {java.INSTALL} from the checkout, or add --pipeline threads",
        )
