"""Which tables does this process know? Those of the topology that it has applied."""

from collections.abc import Mapping

from limosa.core.model.changes import Topology
from limosa.core.model.topology import NamedTable
from limosa.errors import UnknownTable
from limosa.tabular.schema import Table


class KnownTables:
    """Definitions by name and by fingerprint; replaced at once, so that any thread can read."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, Table] = {}
        self._by_fingerprint: dict[int, Table] = {}
        self._by_name: Mapping[str, tuple[NamedTable, Table]] = {}
        self._source: Mapping[str, NamedTable] | None = None

    def follow(self, topology: Topology) -> None:
        if topology.tables is self._source:
            return
        by_name = {name: (named, self._decode(named)) for name, named in topology.tables.items()}
        self._by_fingerprint = {table.fingerprint: table for _, table in by_name.values()}
        self._by_name = by_name
        self._source = topology.tables
        self._decoded = {named.definition: table for named, table in by_name.values()}

    def _decode(self, named: NamedTable) -> Table:
        known = self._decoded.get(named.definition)
        return Table.decode(named.definition) if known is None else known

    def by_fingerprint(self, fingerprint: int) -> Table | None:
        return self._by_fingerprint.get(fingerprint)

    def named(self, name: str) -> tuple[NamedTable, Table]:
        found = self._by_name.get(name)
        if found is None:
            some = ", ".join(sorted(self._by_name)[:5]) or "none yet"
            raise UnknownTable(
                f"there is no table {name!r}", f"create it first; known tables: {some}"
            )
        return found

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)
