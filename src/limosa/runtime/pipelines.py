"""Which pipeline copies rows here? Spark where it is installed, otherwise threads."""

import os
import time
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.errors import BadInput
from limosa.pipeline import java
from limosa.pipeline.application import Options
from limosa.pipeline.carriers import Carrier, Changed, SparkCarrier, ThreadCarrier
from limosa.pipeline.loads import Permit
from limosa.pipeline.mover import PipelineMover
from limosa.pipeline.pipe import Access
from limosa.pipeline.protection import check_conf, secret_for
from limosa.runtime.coordinator import MakeMover
from limosa.runtime.journal import Journal
from limosa.transport.keys import KeyFile
from limosa.transport.security import Security
from limosa.transport.tokens import Sessions, issue

TOKEN_SECONDS = 900.0
"""A copy that takes longer is continued by tasks with new tokens."""
BYTES_PER_SECOND = 64 << 20


class PipelineConfig(Struct, frozen=True, kw_only=True):
    """Settings of a coordinator's pipeline."""

    kind: Literal["auto", "spark", "threads"] = "auto"
    scratch: str
    """A directory for the pipeline alone: its contents are deleted."""
    master: str = ""
    secret: str | None = None
    """The file with the Spark cluster's secret, if the master is that of a Spark cluster."""
    conf: dict[str, str] = {}
    bytes_per_second: float = BYTES_PER_SECOND
    """Limit for all copies together; 0: no limit."""
    always: bool = False
    """Start Spark with the coordinator, and keep it running."""


def settings_for(config: PipelineConfig, settings: CoordinatorSettings) -> CoordinatorSettings:
    """Without Spark, moves are refused before they start; lost replicas are still rebuilt."""
    missing = "" if config.kind == "threads" else java.missing()
    if missing and config.kind == "spark":
        raise BadInput(missing, f"run {java.INSTALL}, from the checkout")
    if not missing:
        return replace(settings, pipeline_always=config.always)
    return replace(
        settings,
        moves_refused=f"partitions move on Spark, and {missing}",
        moves_advice=f"run {java.INSTALL} from the checkout, and start the coordinator again",
    )


def mover_for(
    config: PipelineConfig, security: Security, cluster: str, name: str, journal: Journal
) -> MakeMover:
    on_spark = config.kind != "threads" and not java.missing()
    if on_spark:
        check_conf(config.conf)
    spark_secret = secret_for(config.master, config.secret) if on_spark else ""
    keys = None if security.secret is None else KeyFile(security.secret)
    access = Access(cluster, security.authority, security.certificate, security.key)

    def permit(sessions: Sessions) -> Permit:
        if keys is None:
            return Permit()
        ring, subject = keys.current(), f"{name}-mover"
        token = issue(ring, cluster, subject, "mover", TOKEN_SECONDS, time.time(), sessions)
        return Permit(token, TOKEN_SECONDS)

    def make(changed: Changed) -> PipelineMover:
        carrier: Carrier
        if not on_spark:
            carrier = ThreadCarrier()
        else:
            scratch = Path(config.scratch).absolute()
            options = Options(
                str(scratch),
                config.master,
                config.conf,
                f"limosa-{cluster}-{os.getpid()}",
                spark_secret,
            )
            words = scratch.with_name(scratch.name + ".log")
            carrier = SparkCarrier(options, changed, journal, str(words))
            changed("off", "")
        return PipelineMover(carrier, access, permit, config.bytes_per_second, journal)

    return make
