"""How is Spark protected from other users? Its processes prove a secret and encrypt what they send.

A task contains a token that reads rows. Without these settings any user of the machine, or of the
network, could fetch a task from Spark's ports, and have Java deserialise bytes of their choice.

    master                  secret
    local[…], YARN, k8s     Spark makes one for each application
    local-cluster[…]        made here for each application
    spark://…               the Spark cluster's own, from a file that only its owner can read

The secret never is an option of a process, since all users of a machine see those.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Final

from limosa.errors import BadInput
from limosa.transport.keys import read_secret

# fmt: off
PROTECTION: Final[Mapping[str, str]] = {
    "spark.authenticate":                    "true",
    "spark.network.crypto.enabled":          "true",
    "spark.network.crypto.saslFallback":     "false",
    "spark.io.encryption.enabled":           "true",
}
"""Settings that can't be changed."""
CIPHER: Final[Mapping[str, str]] = {
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher":            "AES/GCM/NoPadding",
}
"""Settings that an older Spark cluster may need to be others."""
# fmt: on

SECRET = "spark.authenticate.secret"
_MADE_HERE = re.compile(r"local-cluster\b")
_MADE_BY_SPARK = re.compile(r"(local(\[.*\])?|yarn|k8s://.*)?")


def check_conf(conf: Mapping[str, str]) -> None:
    """Refuse settings of the operator that would open Spark to others."""
    if SECRET in conf:
        raise BadInput(
            f"{SECRET} would be visible to all users of this machine",
            "write the secret to a file that only you can read, and name it with --spark-secret",
        )
    for name, value in PROTECTION.items():
        if conf.get(name, value).strip().lower() != value:
            raise BadInput(
                f"{name} can't be {conf[name]}: tasks carry tokens, which others could read",
                f"leave {name} out",
            )


def secret_for(master: str, path: str | None) -> str:
    """The secret that the application is given; empty: Spark makes its own."""
    if _MADE_BY_SPARK.fullmatch(master):
        if path is not None:
            raise BadInput(
                f"{master or 'Spark on this machine'} needs no secret: Spark makes one",
                "leave --spark-secret out",
            )
        return ""
    if path is not None:
        return _printable(read_secret(path), path)
    if _MADE_HERE.match(master):
        return secrets.token_hex(32)
    raise BadInput(
        f"the Spark master {master} needs the secret of its cluster",
        f"set spark.authenticate=true and {SECRET} for its master and workers, and name a file "
        "with the same secret with --spark-secret",
    )


def _printable(secret: bytes, path: str) -> str:
    if not (secret.isascii() and secret.decode().isprintable()):
        raise BadInput(f"the secret in {path} is not text", "use printable ASCII characters")
    return secret.decode()
