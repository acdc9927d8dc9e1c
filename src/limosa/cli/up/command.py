"""How does a whole cluster run in one terminal? `limosa up`, until Ctrl-C."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from limosa.cli.shared.admin_service import INSTALL_ADMIN, is_admin_installed
from limosa.cli.shared.options import AsJson
from limosa.cli.shared.pipelines import KeepSparkRunning, LoadSourcePath
from limosa.cli.shared.terminal import count, place_of, print_json, print_table, tell
from limosa.cli.up.supervisor import Supervisor
from limosa.client.discovery import (
    DEFAULT_DIRECTORY,
    LOCAL,
    Local,
    check_owner,
    forget_local,
    write_local,
)
from limosa.errors import BadInput, Refused
from limosa.runtime.local import LocalCluster

LOOK_SECONDS = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=50, help="Number of nodes.", show_default="3, or as many as last time"
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="The cluster's directory.")] = DEFAULT_DIRECTORY,
    cluster: Annotated[
        str | None, typer.Option(help="The name of a new cluster.", show_default=LOCAL)
    ] = None,
    lease_seconds: Annotated[
        float, typer.Option(min=0.5, help="After how long a silent node counts as dead.")
    ] = 3.0,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Do not restart a process that died.")
    ] = False,
    no_admin: Annotated[
        bool, typer.Option("--no-admin", help="Do not run the admin service over HTTP.")
    ] = False,
    keep_spark_running: KeepSparkRunning = False,
    load_source: LoadSourcePath = "",
    as_json: AsJson = False,
) -> None:
    """Run a cluster on this machine, in this terminal.

    It starts a coordinator, the nodes and an admin service as separate processes, and restarts
    each of them that dies, and a coordinator that hangs. Ctrl-C stops all of them; a second Ctrl-C
    kills them. The data stays in the directory for the next `limosa up`; a larger --nodes adds
    nodes.

    \b
    Examples:
      limosa up
      limosa up --nodes 5 --data /srv/limosa
    """
    if data == DEFAULT_DIRECTORY:
        check_owner(Path(data), "--data")
    local = LocalCluster(
        data,
        nodes,
        cluster or LOCAL,
        arguments=["--lease-seconds", str(lease_seconds)],
        of_coordinators=[
            *(["--keep-spark-running"] if keep_spark_running else []),
            *(["--load-source", load_source] if load_source else []),
        ],
        admin=not no_admin and _can_serve_admin(),
    )
    if cluster is not None and local.cluster != cluster:
        raise BadInput(
            f"{local.directory} holds the cluster {local.cluster}", "leave --cluster out"
        )
    with _stopped_by_signals(local) as run:
        tell(f"Starting {count(len(local.nodes), 'node')} in {local.directory} …")
        local.start()
        try:
            _announce(local)
            run.was_ready = True
            _welcome(local, data, as_json)
            _watch(local, not no_restart)
        finally:
            forget_local(local.directory)
            tell("Stopping …")
            local.stop()


def _can_serve_admin() -> bool:
    """The admin service is optional."""
    if is_admin_installed():
        return True
    tell(f"The admin service does not run: it needs FastAPI and uvicorn ({INSTALL_ADMIN}).")
    return False


class UpState(Struct):
    """How far the cluster has started, and how it is being stopped."""

    was_ready: bool = False
    stopping_since: float | None = None
    killed: bool = False


@contextmanager
def _stopped_by_signals(local: LocalCluster) -> Iterator[UpState]:
    """The first signal stops the cluster; later ones kill the processes that still run."""
    run = UpState()

    def heard(number: int, frame: object) -> None:
        if run.stopping_since is None:
            run.stopping_since = time.monotonic()
            raise KeyboardInterrupt
        run.killed = True
        for process in list(local.processes.values()):
            process.kill()

    # Under nohup the cluster survives the end of its terminal.
    hears = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, heard) for number in hears}
    try:
        yield run
    except KeyboardInterrupt:
        _say_goodbye(run)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_goodbye(run: UpState) -> None:
    if run.killed:
        tell("Killed. The next `limosa up` recovers all acknowledged rows.")
    elif not run.was_ready:
        tell("Stopped before the cluster was ready.")
    else:
        seconds = time.monotonic() - (run.stopping_since or 0.0)
        tell(f"Stopped cleanly after {seconds:.1f} s. All rows are kept.")
        return
    raise typer.Exit(130)


def _announce(local: LocalCluster) -> None:
    write_local(
        local.directory,
        Local(
            local.cluster,
            dict(local.addresses),
            local.secret,
            os.getpid(),
            local.metastore,
            str(local.directory),
            local.admin_url,
        ),
    )


def _welcome(local: LocalCluster, data: str, as_json: bool) -> None:
    for name, why in local.node_troubles.items():
        tell(f"{why}. The other nodes run, and {name} is started again and again.")
    if local.admin_trouble:
        tell(f"The admin service does not run: {local.admin_trouble}")
    if as_json:
        print_json(
            {
                "cluster": local.cluster,
                "directory": str(local.directory),
                "pid": os.getpid(),
                "nodes": local.addresses,
                "troubles": local.node_troubles,
                "secret": local.secret,
                "admin": local.admin_url or None,
            }
        )
        return
    print_table(
        ("node", "address", "process", "log"),
        [
            (name, _place(local, name), local.processes[name].pid, f"logs/{name}.log")
            for name in local.nodes
        ],
    )
    elsewhere = Path(data) != Path(DEFAULT_DIRECTORY)
    lines = [
        f"The cluster {local.cluster} is ready. In another terminal:",
        "",
        *([f"  export LIMOSA_CLUSTER={local.directory}"] if elsewhere else []),
        "  limosa generate 1000000 items.parquet",
        "  limosa write items items.parquet --create --key id",
        "  limosa read items --where 'price > 99' --limit 5",
        "  limosa status",
        *(["  limosa admin-token add me --role admin"] if local.admin_url else []),
        "",
        *(
            [f"Admin service, for clients with a token: {local.admin_url}"]
            if local.admin_url
            else []
        ),
        "From Python: limosa.connect(). Ctrl-C stops the cluster and keeps its rows.",
    ]
    typer.echo("\n".join(lines))


def _place(local: LocalCluster, name: str) -> str:
    return "did not start" if name in local.node_troubles else place_of(local.addresses[name])


def _watch(local: LocalCluster, restarts: bool) -> None:
    def report(what: str) -> None:
        tell(f"{time.strftime('%H:%M:%S')} {what}")

    supervisor = Supervisor(local, report, lambda: _announce(local), restarts)
    while not supervisor.all_gone:
        supervisor.look()
        time.sleep(LOOK_SECONDS)
    raise Refused("every process has ended", f"see the logs in {local.directory}/logs")
