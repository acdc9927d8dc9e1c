"""Certificates for tests: an authority that lives as long as a test."""

from pathlib import Path

import trustme

from limosa.transport.security import Security

SERVER_NAMES = ("server-1", "localhost", "127.0.0.1")


class Authority:
    """Signs certificates and writes them, with their keys, into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self._count = 0
        self.path = str(directory / "authority.pem")
        self._authority.cert_pem.write_to_path(self.path)

    def issue(self, *names: str, common_name: str | None = None) -> tuple[str, str]:
        """The paths of a new certificate, and of its key."""
        self._count += 1
        certificate = self._directory / f"certificate-{self._count}.pem"
        key = self._directory / f"key-{self._count}.pem"
        issued = self._authority.issue_cert(*names, common_name=common_name)
        issued.private_key_pem.write_to_path(str(key))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(certificate), append=True)
        return str(certificate), str(key)

    def security(
        self,
        *names: str,
        common_name: str | None = None,
        secret: str | None = None,
        verify_clients: bool = True,
    ) -> Security:
        """Of a process with these names that trusts this authority."""
        certificate, key = self.issue(*names, common_name=common_name)
        return Security(
            certificate=certificate,
            key=key,
            authority=self.path,
            secret=secret,
            verify_clients=verify_clients,
        )
