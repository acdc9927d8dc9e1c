"""How do others upsert the same rows, durably, from Python?

Each peer is opened in a directory of its own and takes Arrow batches; every upsert is durable when
it returns. Rows have versions, and the row with the higher one wins, whatever comes first: that is
what a copy that runs beside live writes needs.
"""

import sqlite3
import struct
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa


class Peer(Protocol):
    def upsert(self, batch: pa.RecordBatch) -> None: ...

    def settle(self) -> None:
        """Finish what is put off."""
        ...

    def close(self) -> None: ...


class Sqlite:
    """In place, in write-ahead mode with a full sync for each transaction."""

    def __init__(self, directory: Path) -> None:
        self._store = sqlite3.connect(directory / "rows.db", isolation_level=None)
        self._store.execute("PRAGMA journal_mode=WAL")
        self._store.execute("PRAGMA synchronous=FULL")
        self._store.execute(
            "CREATE TABLE rows (key INTEGER PRIMARY KEY, moment INTEGER, price REAL,"
            " amount INTEGER, text TEXT, version INTEGER)"
        )
        self._version = 0

    def upsert(self, batch: pa.RecordBatch) -> None:
        self._version += 1
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        self._store.execute("BEGIN")
        self._store.executemany(
            f"INSERT INTO rows VALUES (?, ?, ?, ?, ?, {self._version}) ON CONFLICT DO UPDATE SET"
            " moment=excluded.moment, price=excluded.price, amount=excluded.amount,"
            " text=excluded.text, version=excluded.version WHERE excluded.version > version",
            rows,
        )
        self._store.execute("COMMIT")

    def settle(self) -> None:
        self._store.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def get(self, key: int) -> Any:
        return self._store.execute("SELECT * FROM rows WHERE key = ?", (key,)).fetchone()

    def close(self) -> None:
        self._store.close()


class DuckDb:
    """Appended with a version; whoever reads keeps the newest of each key."""

    def __init__(self, directory: Path) -> None:
        import duckdb

        self._store = duckdb.connect(str(directory / "rows.duckdb"))
        self._store.execute(
            "CREATE TABLE rows (key BIGINT, moment BIGINT, price DOUBLE, amount BIGINT,"
            " text VARCHAR, version BIGINT)"
        )
        self._version = 0

    def upsert(self, batch: pa.RecordBatch) -> None:
        self._version += 1
        self._store.register("given", pa.Table.from_batches([batch]))
        self._store.execute(f"INSERT INTO rows SELECT *, {self._version} FROM given")
        self._store.unregister("given")

    def settle(self) -> None:
        self._store.execute("CHECKPOINT")

    def close(self) -> None:
        self._store.close()


class RocksDb:
    """In place: look up what is there, then one synced write batch of what is newer."""

    _ROW = struct.Struct(">qqdq")

    def __init__(self, directory: Path) -> None:
        from rocksdict import Options, Rdict, WriteOptions

        self._store = Rdict(str(directory / "rows.rocks"), Options(raw_mode=True))
        self._durably = WriteOptions()
        self._durably.sync = True
        self._version = 0

    def upsert(self, batch: pa.RecordBatch) -> None:
        from rocksdict import WriteBatch

        self._version += 1
        version, pack = self._version, self._ROW.pack
        rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        keys = [row[0].to_bytes(8, "big") for row in rows]
        puts = WriteBatch(raw_mode=True)
        for key, there, (_, moment, price, amount, text) in zip(
            keys, self._look_up(keys), rows, strict=True
        ):
            if there is None or self._ROW.unpack_from(there)[0] < version:
                puts.put(key, pack(version, moment, price, amount) + text.encode())
        self._store.write(puts, self._durably)

    def _look_up(self, keys: list[bytes]) -> list[bytes | None]:
        many: Any = keys
        return list(self._store[many] or ())

    def settle(self) -> None:
        self._store.flush()

    def close(self) -> None:
        self._store.close()
