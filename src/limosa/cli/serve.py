"""How is one process of a cluster started? `limosa serve node`, `coordinator` or `admin`."""

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from limosa.cli.shared.options import OptionGroup, with_groups
from limosa.cli.shared.pipelines import (
    KeepSparkRunning,
    LoadSourcePath,
    PipelineChoice,
    SparkMaster,
    SparkSecret,
)
from limosa.cli.shared.quantities import bytes_of
from limosa.errors import BadInput, LimosaError
from limosa.runtime.journal import Journal
from limosa.runtime.threads import ProcessEnd
from limosa.transport.security import Security

SWITCH_SECONDS = 0.0005
"""How long a thread may keep Python's lock: a merge must not delay reads."""

LOG_BYTES_MAX = 16 << 20
"""Of the log of a process of `limosa up`, which nobody rotates."""
LOOK_SECONDS = 0.2
STOP_SECONDS = 5.0
"""After a failure, the process exits after this time even if it could not stop cleanly."""

serve = typer.Typer(
    help="Run one process of a cluster, until Ctrl-C or SIGTERM.",
    no_args_is_help=True,
)

Cluster = Annotated[str, typer.Option("--cluster", help="The cluster's name.")]
Metastore = Annotated[
    str, typer.Option("--metastore", help="The metastore: a file on this machine.")
]
Secret = Annotated[
    str | None, typer.Option("--secret", help="File with the cluster's secret, for tokens.")
]
Certificate = Annotated[
    str | None, typer.Option("--certificate", help="This process's certificate (PEM).")
]
Key = Annotated[
    str | None, typer.Option("--key", "--private-key", help="The certificate's private key (PEM).")
]


class Credentials(OptionGroup, frozen=True, kw_only=True):
    """With which a process of the cluster identifies itself and checks the others."""

    secret: Secret = None
    certificate: Certificate = None
    key: Key = None
    authority: Annotated[
        str | None, typer.Option(help="CA certificate of the other processes (PEM), for mTLS.")
    ] = None

    def security(self, **more: Any) -> Security:
        return Security(**asdict(self), **more)


class ProcessOptions(OptionGroup, frozen=True, kw_only=True):
    """The options of every process."""

    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="Stop when standard input ends.", hidden=True)
    ] = False
    json_log: Annotated[bool, typer.Option("--json", help="Write the log as JSON.")] = False


@serve.command()
@with_groups
def node(
    name: Annotated[
        str, typer.Option("--name", help="The node's name; it can't be changed later.")
    ],
    data: Annotated[str, typer.Option("--data", help="The node's directory.")],
    metastore: Metastore,
    cluster: Cluster = "local",
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="The port to listen on; 0: any free port.")
    ] = 0,
    advertise: Annotated[
        str,
        typer.Option("--advertise", help="HOST:PORT that others connect to, if it differs."),
    ] = "",
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume",
            metavar="NAME=DIRECTORY",
            help="A disk for replicas; repeat the option for several.",
            show_default="one, under --data",
        ),
    ] = None,
    rack: Annotated[
        str,
        typer.Option("--rack", help="The node's rack: replicas are spread over racks."),
    ] = "",
    datacenter: Annotated[
        str,
        typer.Option(
            "--datacenter",
            help="The node's datacenter: the replicas of new tables are spread over datacenters.",
        ),
    ] = "",
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Hold no replicas: only serve topology and requests.")
    ] = False,
    lease_seconds: Annotated[
        float, typer.Option("--lease-seconds", help="After how long a silent node counts as dead.")
    ] = 3.0,
    sync_seconds: Annotated[
        float,
        typer.Option(
            "--sync-seconds",
            min=0.1,
            help="After how long a disk that does not finish a sync counts as failed.",
        ),
    ] = 10.0,
    write_latency: Annotated[
        float,
        typer.Option(
            "--write-latency",
            metavar="MS",
            min=0.0,
            help="Copies are slowed down while writes take longer than this, in milliseconds, and "
            "twice as long as before the copy; 0: copies are never slowed down.",
        ),
    ] = 25.0,
    scrub: Annotated[
        str,
        typer.Option(
            "--scrub",
            metavar="BYTES",
            help="How much stored data to verify in the background, in bytes a second; 0: none.",
        ),
    ] = "16MiB",
    *,
    credentials: Credentials,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Accept clients on other machines without TLS and tokens."),
    ] = False,
    process: ProcessOptions,
) -> None:
    """Run a node, which holds replicas; a new node joins the cluster.

    \b
    Examples:
      limosa serve node --name n4 --data /srv/limosa/n4 --metastore /srv/limosa/metastore.db
    """
    from limosa.core.participant.settings import ParticipantSettings
    from limosa.runtime.node import NodeSettings
    from limosa.runtime.processes import NodeConfig, NodeProcess

    def build(journal: Journal) -> tuple[Any, dict[str, Any]]:
        config = NodeConfig(
            name=name,
            cluster=cluster,
            metastore=metastore,
            data=data,
            host=host,
            port=port,
            advertise=advertise,
            volumes=_volumes(volume or []),
            rack=rack,
            datacenter=datacenter,
            holds_data=not no_data,
            security=credentials.security(cluster=cluster, insecure=insecure),
            settings=NodeSettings(
                participant=ParticipantSettings(
                    lease_seconds=lease_seconds,
                    heartbeat_seconds=lease_seconds / 6,
                    sync_seconds_max=sync_seconds,
                    slow_write_seconds=write_latency / 1e3,
                ),
                scrub_bytes_per_second=int(bytes_of(scrub)),
            ),
        )
        running = NodeProcess(config, journal)
        return running, {"node": name, "address": running.server.address}

    _run(name, build, process)


@serve.command()
@with_groups
def coordinator(
    metastore: Metastore,
    name: Annotated[str, typer.Option("--name", help="The coordinator's name.")] = "coordinator",
    cluster: Cluster = "local",
    *,
    credentials: Credentials,
    pipeline: Annotated[
        PipelineChoice,
        typer.Option(
            "--pipeline",
            help="What copies rows to new replicas. auto uses Spark; if Spark is missing, lost "
            "replicas are rebuilt, but partitions do not move. threads needs no Spark.",
        ),
    ] = "auto",
    spark_master: SparkMaster = "",
    spark_secret: SparkSecret = None,
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(
            "--spark-conf",
            metavar="NAME=VALUE",
            help="A Spark setting; repeat the option for several.",
        ),
    ] = None,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            metavar="BYTES",
            help="Limit for all copies together, in bytes a second; 0: no limit.",
        ),
    ] = "64MiB",
    keep_spark_running: KeepSparkRunning = False,
    load_source: LoadSourcePath = "",
    process: ProcessOptions,
) -> None:
    """Run a coordinator; of several, one is active.

    The others stand by, and one of them takes over when the active one fails. If the metastore is
    empty, the coordinator creates the cluster.

    \b
    Examples:
      limosa serve coordinator --metastore /srv/limosa/metastore.db
      limosa serve coordinator --metastore … --spark-master spark://10.0.0.7:7077 \
        --spark-secret /srv/limosa/spark-secret --bandwidth 1GiB
    """
    from limosa.core.coordinator.settings import CoordinatorSettings
    from limosa.runtime.pipelines import PipelineConfig, mover_for, settings_for
    from limosa.runtime.processes import CoordinatorConfig, CoordinatorProcess

    carrying = PipelineConfig(
        kind=pipeline,
        scratch=str(Path(metastore).absolute().parent / f"spark-{name}"),
        master=spark_master,
        secret=spark_secret,
        conf=dict(_pair(each) for each in spark_conf or []),
        bytes_per_second=bytes_of(bandwidth),
        always=keep_spark_running,
    )

    def build(journal: Journal) -> tuple[Any, dict[str, Any]]:
        config = CoordinatorConfig(
            name=name,
            cluster=cluster,
            metastore=metastore,
            security=credentials.security(
                cluster=cluster, verify_clients=credentials.certificate is not None
            ),
            settings=settings_for(carrying, CoordinatorSettings()),
            load_source=load_source,
        )
        mover = mover_for(carrying, config.security, cluster, name, journal)
        return CoordinatorProcess(config, mover, journal), {"coordinator": name}

    _run(name, build, process)


@serve.command()
@with_groups
def admin(
    bind: Annotated[
        str,
        typer.Option(
            "--bind", metavar="HOST:PORT", help="The address to listen on; port 0: any free port."
        ),
    ] = "127.0.0.1:8080",
    connect: Annotated[
        list[str] | None,
        typer.Option(
            "--connect",
            metavar="ADDRESS",
            help="HOST:PORT of a node; repeat the option for several.",
            show_default="the cluster of --directory",
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--directory",
            help="The directory of `limosa up`; with --connect, that of tokens and audit log.",
            show_default="./limosa-data, or the last local cluster's",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The service's name, in the log.")] = "admin",
    cluster: Cluster = "local",
    secret: Secret = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="LIMOSA_TOKEN", help="A token of the role admin, instead of --secret."
        ),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Annotated[
        str | None, typer.Option("--authority", help="CA certificate of the nodes (PEM).")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept clients on other machines without TLS.")
    ] = False,
    *,
    process: ProcessOptions,
) -> None:
    """Run an admin service: an HTTP API with roles.

    Several may run: the service stores nothing but an audit log. Clients need a token, which
    `limosa admin-token` makes.

    \b
    Examples:
      limosa serve admin
      limosa serve admin --bind 127.0.0.1:9000 --directory /srv/limosa
      limosa serve admin --connect 127.0.0.1:4701 --directory /srv/admin --cluster shop --secret …
      limosa serve admin --bind 0.0.0.0:8443 --certificate admin.pem --key admin.key
    """
    from limosa.cli.shared.admin_service import check_admin_installed, directory_of

    check_admin_installed()
    from limosa.admin.process import AdminConfig, AdminProcess
    from limosa.client.operator import operate

    where = directory_of(directory) if not connect or directory else ""
    if not where:
        raise BadInput(
            "--connect needs a directory for the tokens and the audit log",
            "name it with --directory",
        )

    # Where the nodes use TLS, the service's certificate is also its client certificate.
    reach = partial(
        operate,
        connect or where,
        cluster_name=cluster,
        token=token,
        secret=secret,
        authority=authority,
        certificate=None if authority is None else certificate,
        key=None if authority is None else key,
        name="limosa-admin",
    )

    def build(journal: Journal) -> tuple[Any, dict[str, Any]]:
        config = AdminConfig(
            bind=bind,
            directory=where,
            connect=reach,
            certificate=certificate,
            key=key,
            insecure=insecure,
        )
        running = AdminProcess(config, journal)
        return running, {"admin": name, "url": running.url}

    _run(name, build, process)


def _pair(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise BadInput(f"{given!r} is not a setting", "write NAME=VALUE")
    return name, value


def _volumes(given: list[str]) -> dict[str, str]:
    volumes = {}
    for each in given:
        name, equals, directory = each.partition("=")
        if not equals or not name or not directory:
            raise BadInput(f"{each!r} is not a volume", "write NAME=DIRECTORY")
        volumes[name] = str(Path(directory).absolute())
    return volumes


def _run(
    name: str,
    build: Callable[[Journal], tuple[Any, dict[str, Any]]],
    options: ProcessOptions,
) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    os.umask(0o077)  # logs, the metastore and Spark's files are for this user only
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    bytes_max = LOG_BYTES_MAX if options.with_parent else 0
    journal = Journal(name, json=options.json_log, bytes_max=bytes_max)
    end = ProcessEnd()
    end.watch_threads(journal)
    try:
        process, said = build(journal)
    except LimosaError as error:
        journal("did not start", error=str(error))
        raise
    gc.collect()
    gc.freeze()  # objects made so far live as long as the process: do not scan them again
    gc.set_threshold(50_000, 20, 20)
    print("ready", json.dumps(said), flush=True)
    if options.with_parent:
        threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    pulse = Pulse(process) if options.with_parent else None
    while not stop.wait(LOOK_SECONDS):
        if end.ended.is_set() or process.end.ended.is_set():
            break
        if pulse is not None:
            pulse.beat()
    failure = end.failure or process.end.failure
    if failure is not None:
        _exit_if_it_hangs()
    process.stop()
    journal("stopped")
    sys.stdout.flush()
    # Streams of peers that missed the goodbye must not delay the end of the process.
    os._exit(1 if failure is not None else 0)


class Pulse:
    """Tells the parent that the process works, if it counts its ticks: a byte on standard output.

    A parent that does not read the bytes must not hold the process up.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self._ticks = 0
        self._output = sys.stdout.fileno()
        os.set_blocking(self._output, False)

    def beat(self) -> None:
        ticks = getattr(self._process, "ticks", 0)
        if ticks != self._ticks:
            self._ticks = ticks
            with suppress(OSError):
                os.write(self._output, b".")


def _exit_if_it_hangs() -> None:
    """What failed may also keep the process from stopping, like a disk that does not answer."""
    timer = threading.Timer(STOP_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _wait_for_end(stop: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    stop.set()
