"""Which options do several commands take? How they find their cluster, and how they answer."""

import inspect
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct

from limosa.client.connection import Connection
from limosa.client.discovery import VARIABLE
from limosa.client.operator import Operator
from limosa.client.requests import PARTITIONS
from limosa.errors import OutcomeUnknown

ATTEMPTS = 3
PAUSE_SECONDS = 0.5
OPERATION_SECONDS = 60.0

Client = TypeVar("Client", bound=Connection)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, also for errors.")]

# --- tables

Partitions = Annotated[
    int | None, typer.Option(min=1, help="Number of partitions.", show_default=str(PARTITIONS))
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Copies of every row.", show_default="3, or the number of nodes"),
]

# --- the cluster

_Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        envvar=VARIABLE,
        metavar="ADDRESS|DIRECTORY",
        help="HOST:PORT of a node (or several, separated by commas), or the directory of "
        "`limosa up`.",
        show_default="./limosa-data, or the last local cluster",
    ),
]
_ClusterName = Annotated[
    str | None,
    typer.Option("--cluster-name", help="The cluster's name, if ADDRESS and --secret are given."),
]
_Token = Annotated[
    str | None,
    typer.Option("--token", envvar="LIMOSA_TOKEN", help="The token to authenticate with."),
]
_Secret = Annotated[
    str | None, typer.Option("--secret", help="File with the cluster's secret, instead of a token.")
]
_Authority = Annotated[
    str | None, typer.Option("--authority", help="CA certificate of the nodes (PEM); turns TLS on.")
]
_Certificate = Annotated[
    str | None, typer.Option("--certificate", help="This client's certificate (PEM), for mTLS.")
]
_PrivateKey = Annotated[
    str | None, typer.Option("--private-key", help="The certificate's private key (PEM).")
]

_OPTIONS: dict[str, Any] = {
    "cluster": _Cluster,
    "cluster_name": _ClusterName,
    "token": _Token,
    "secret": _Secret,
    "authority": _Authority,
    "certificate": _Certificate,
    "private_key": _PrivateKey,
    "as_json": AsJson,
}


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """The options that name the cluster, the credentials, and the output format."""

    cluster: str | None = None
    cluster_name: str | None = None
    token: str | None = None
    secret: str | None = None
    authority: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    as_json: bool = False

    def connect(self) -> Connection:
        """As an application."""
        return self._open(Connection)

    def operate(self) -> Operator:
        """As an operator."""
        return self._open(Operator)

    def _open(self, client: type[Client]) -> Client:
        """A busy machine may miss the first deadline, so there are several attempts."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._open_once(client)
            except OutcomeUnknown:
                if attempt == ATTEMPTS:
                    raise
            time.sleep(PAUSE_SECONDS)
        raise AssertionError

    def _open_once(self, client: type[Client]) -> Client:
        return client.open(
            self.cluster,
            cluster_name=self.cluster_name,
            token=self.token,
            secret=self.secret,
            authority=self.authority,
            certificate=self.certificate,
            key=self.private_key,
            timeout_seconds=OPERATION_SECONDS,
            name="limosa-cli",
        )


def of_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, which receives them as its first argument."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "as_json" else None,
            annotation=option,
        )
        for name, option in _OPTIONS.items()
    ]

    def run(**given: Any) -> None:
        target = ClusterOptions(**{name: given.pop(name) for name in _OPTIONS})
        command(target, **given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + shared
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__module__ = command.__module__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
