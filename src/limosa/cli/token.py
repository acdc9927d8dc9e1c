"""How do clients authenticate, and how are secrets replaced? `limosa token …`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import count, print_answer, print_json, print_table
from limosa.client.discovery import LOCAL, find_local
from limosa.errors import BadInput, Refused
from limosa.runtime.audit import noted
from limosa.transport.keys import KEYS_MAX, Revocation, change_keys, new_key, read_keys
from limosa.transport.tokens import claims_of, issue

DAY_SECONDS = 86_400.0

token = typer.Typer(
    help="Make and revoke the tokens of clients; replace the cluster's secret.",
    no_args_is_help=True,
)


@token.command()
@with_groups
def make(
    target: ClusterOptions,
    subject: Annotated[str, typer.Option(help="The user or program that will use the token.")],
    role: Annotated[str, typer.Option(help="client, admin, node or coordinator.")] = "client",
    days: Annotated[float, typer.Option(help="Days until the token expires.")] = 30.0,
) -> None:
    """Make a token from the cluster's secret, and print it.

    The role client can read and write rows; admin can also create and drop tables, and manage the
    cluster. The cluster need not be running: its secret is enough.

    \b
    Examples:
      limosa token make --subject reports --role client --days 90
      limosa token make --subject ann --role admin --secret /srv/limosa/secret --cluster-name shop
    """
    cluster, path = _secret(target)
    keys = read_keys(path)
    made = issue(keys, cluster, subject, role, days * DAY_SECONDS, time.time())
    claims = claims_of(made)
    answer = {
        "token": made,
        "id": claims.id,
        "key": keys.signing.id,
        "subject": subject,
        "role": role,
        "expires_at": round(claims.expires_at),
    }
    print_answer(target.as_json, answer, made)


@token.command("list")
@with_groups
def list_(target: ClusterOptions) -> None:
    """List the valid secrets, by their ids, and what is revoked.

    Tokens themselves are not listed: the cluster does not store them.

    \b
    Examples:
      limosa token list
    """
    _, path = _secret(target)
    ring = read_keys(path)
    if target.as_json:
        keys = [{"id": key.id, "made": key.made or None} for key in ring.keys]
        print_json({"keys": keys, "revoked": ring.revoked})
        return
    print_table(
        ("key", "made", "use"),
        [
            (key.id or "-", _moment(key.made), "verifies" if number else "signs and verifies")
            for number, key in enumerate(ring.keys)
        ],
    )
    if ring.revoked:
        typer.echo("")
        rows = [(each.id or "-", each.subject or "-", _moment(each.at)) for each in ring.revoked]
        print_table(("revoked token", "subject", "since"), rows)


@token.command()
@with_groups
def revoke(
    target: ClusterOptions,
    subject: Annotated[
        str | None, typer.Option(help="Revoke all tokens that this subject has been given.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Revoke one token, by its id or by the token itself.")
    ] = None,
) -> None:
    """Revoke a token, or all tokens of a subject.

    Takes effect within a second, also for open connections, on every process that reads the
    secret's file; no process is restarted. If there are several machines, copy the file to all of
    them. A subject can be given new tokens afterwards. Programs that hold the secret make their own
    tokens: to lock these out, replace the secret with `limosa token rotate`, twice.

    \b
    Examples:
      limosa token revoke --subject reports
      limosa token revoke --id 0123456789abcdef0123456789abcdef
    """
    if (subject is None) == (id is None):
        raise BadInput("name what to revoke", "give either --subject or --id")
    _, path = _secret(target)
    now = time.time()
    if subject is not None:
        revocation, what = Revocation(now, subject=subject), f"all tokens of {subject}"
    else:
        assert id is not None
        known = claims_of(id).id if "." in id else id
        revocation, what = Revocation(now, id=known), f"the token {known}"
    with noted(Path(path), "revoke tokens", revoked=revocation):
        change_keys(path, lambda ring: ring.with_revoked(revocation))
    print_answer(target.as_json, {"revoked": revocation}, f"Revoked {what}.")


@token.command()
@with_groups
def rotate(target: ClusterOptions) -> None:
    """Replace the cluster's secret by a new one.

    Takes effect within a second on every process that reads the secret's file; no process is
    restarted, and no operation fails. The secret before it stays valid until the next rotation, so
    that clients can be given new tokens meanwhile. If there are several machines, copy the file to
    all of them.

    If a secret has become known to others, rotate twice: the second rotation ends what was signed
    with it. Give clients new tokens in between.

    \b
    Examples:
      limosa token rotate
      limosa token rotate --secret /srv/limosa/secret
    """
    _, path = _secret(target)
    key = new_key(time.time())
    dropped = [each.id or "-" for each in read_keys(path).keys[KEYS_MAX - 1 :]]
    with noted(Path(path), "rotate secret", key=key.id, dropped=dropped):
        ring = change_keys(path, lambda before: before.rotated(key))
    answer = {"key": key.id, "valid": [each.id for each in ring.keys], "dropped": dropped}
    gone = f" Tokens signed with {dropped[0]} are no longer valid." if dropped else ""
    told = f"New tokens are signed with {key.id}; {count(len(ring.keys), 'secret')} valid.{gone}"
    print_answer(target.as_json, answer, told)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else "-"


def _secret(target: ClusterOptions) -> tuple[str, str]:
    """The cluster's name, and the path of its secret."""
    if target.secret is not None:
        return target.cluster_name or LOCAL, target.secret
    if target.cluster is not None and not os.path.isdir(target.cluster):
        raise BadInput("a token needs the cluster's secret", "name its file with --secret")
    local = find_local(target.cluster)
    if local.secret is None or not Path(local.secret).exists():
        raise Refused("this cluster has no secret", "name its file with --secret")
    return local.cluster, local.secret
