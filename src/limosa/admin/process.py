"""What is the admin service's process made of? A web server on a thread, and what it serves."""

import errno
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from msgspec import Struct

from limosa.admin import app, tokens
from limosa.admin.operations import Follower
from limosa.admin.patience import PatientProtocol
from limosa.admin.reconnection import ReconnectingCluster
from limosa.admin.runs import Runs
from limosa.admin.service import AdminService, AdminSettings, Logger
from limosa.admin.tokens import Tokens
from limosa.client.operator import Operator
from limosa.errors import BadInput, Refused
from limosa.runtime import audit
from limosa.runtime.audit import AuditLog
from limosa.runtime.threads import ProcessEnd, vital_thread
from limosa.transport.security import Security, check_bind, read_pair

START_SECONDS = 20.0
STOP_SECONDS = 5.0
CONNECTIONS_MAX = 256


class AdminConfig(Struct, frozen=True, kw_only=True):
    """The settings of the process."""

    bind: str
    """HOST:PORT; port 0: any free one."""
    directory: str
    """The directory of the tokens and the audit log."""
    connect: Callable[[], Operator]
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False
    settings: AdminSettings = AdminSettings()


class AdminProcess:
    """Listens and serves from its construction until `stop`."""

    def __init__(self, config: AdminConfig, log: Logger) -> None:
        host, port = address_of(config.bind)
        security = Security(
            certificate=config.certificate,
            key=config.key,
            secret=tokens.FILE,  # every client needs a token
            insecure=config.insecure,
        )
        check_bind(host, security)
        if config.certificate is not None and config.key is not None:
            read_pair(config.certificate, config.key)
        directory = Path(config.directory)
        if not directory.is_dir():
            raise BadInput(f"there is no directory {directory}", "create it, or name another one")
        self._socket = listen(host, port)
        self.cluster = ReconnectingCluster(config.connect)
        self.service = AdminService(
            self.cluster,
            Tokens(directory / tokens.FILE),
            AuditLog(directory / audit.FILE),
            log,
            Runs(self.cluster),
            config.settings,
        )
        self.follower = Follower(config.settings.follow_seconds)
        self.service.asked = self.follower.add
        bound = self._socket.getsockname()[1]
        scheme = "http" if config.certificate is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{bound}"
        self._server = uvicorn.Server(_settings_of(app.build(self.service), config))
        self.end = ProcessEnd()
        self._thread = vital_thread(self._serve, "limosa-http", self.end.fail)
        self._thread.start()
        self.follower.start()
        self._wait_until_started()

    def _serve(self) -> None:
        self._server.run([self._socket])
        if not self._server.should_exit:
            raise Refused("the web server ended", "see its log")

    def _wait_until_started(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise Refused("the web server did not start", "see its log")
            time.sleep(0.01)

    def stop(self) -> None:
        """Requests in flight get a moment to finish."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        self.follower.stop()
        self._socket.close()
        self.service.close()
        self.cluster.close()


def _settings_of(application: object, config: AdminConfig) -> uvicorn.Config:
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # bad requests must not fill the log
    return uvicorn.Config(
        application,  # type: ignore[arg-type]
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=2,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )


def address_of(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise BadInput(
            f"{bind!r} is not an address to listen on", "give HOST:PORT, like 127.0.0.1:8080"
        )
    return host, int(port)


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(
                f"{host}:{port} is used by another process", "choose another port, or 0 for any"
            ) from None
        why = error.strerror or str(error)
        raise BadInput(f"can't listen on {host}:{port}: {why}", "choose another address") from None
