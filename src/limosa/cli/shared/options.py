"""Which options do several commands take? How they find their cluster, and how they answer."""

import inspect
import os
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct
from msgspec.structs import fields

from limosa.client.connection import Connection
from limosa.client.discovery import VARIABLE
from limosa.client.operator import Operator
from limosa.client.requests import PARTITIONS
from limosa.errors import OutcomeUnknown

ATTEMPTS = 3
PAUSE_SECONDS = 0.5
OPERATION_SECONDS = 60.0
KEYWORD = inspect.Parameter.KEYWORD_ONLY

Client = TypeVar("Client", bound=Connection)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, also for errors.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

JobsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of processes.", show_default="all cores"),
]

# --- tables

Partitions = Annotated[
    int | None, typer.Option(min=1, help="Number of partitions.", show_default=str(PARTITIONS))
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Copies of every row.", show_default="3, or the number of nodes"),
]


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- groups of options


class OptionGroup(Struct, frozen=True, kw_only=True):
    """Options that several commands take; see `with_groups`."""


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each `OptionGroup` among its parameters; those that name the
    cluster are listed last."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    own.sort(key=lambda each: each.annotation is ClusterOptions)
    groups: dict[str, type[OptionGroup]] = {}
    options: list[inspect.Parameter] = []
    for each in own:
        if isinstance(each.annotation, type) and issubclass(each.annotation, OptionGroup):
            groups[each.name] = each.annotation
            options += [
                inspect.Parameter(field.name, KEYWORD, default=field.default, annotation=field.type)
                for field in fields(each.annotation)
            ]
        else:
            options.append(each.replace(kind=KEYWORD))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            values = {field: given.pop(field) for field in group.__struct_fields__}
            given[name] = group(**values)
        command(**given)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__module__ = command.__module__
    run.__annotations__ = {each.name: each.annotation for each in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


class ClusterOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that name the cluster, the credentials, and the output format."""

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            envvar=VARIABLE,
            metavar="ADDRESS|DIRECTORY",
            help="HOST:PORT of a node (or several, separated by commas), or the directory of "
            "`limosa up`.",
            show_default="./limosa-data, or the last local cluster",
        ),
    ] = None
    cluster_name: Annotated[
        str | None,
        typer.Option(help="The cluster's name, if ADDRESS and --secret are given."),
    ] = None
    token: Annotated[
        str | None, typer.Option(envvar="LIMOSA_TOKEN", help="The token to authenticate with.")
    ] = None
    secret: Annotated[
        str | None, typer.Option(help="File with the cluster's secret, instead of a token.")
    ] = None
    authority: Annotated[
        str | None, typer.Option(help="CA certificate of the nodes (PEM); turns TLS on.")
    ] = None
    certificate: Annotated[
        str | None, typer.Option(help="This client's certificate (PEM), for mTLS.")
    ] = None
    private_key: Annotated[
        str | None, typer.Option(help="The certificate's private key (PEM).")
    ] = None
    as_json: AsJson = False

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
            except OutcomeUnknown:
                if attempt == ATTEMPTS:
                    raise
            time.sleep(PAUSE_SECONDS)
        raise AssertionError
