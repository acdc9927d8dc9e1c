"""What does an application import? `connect`, and what it gives: tables to write to and read."""

from limosa.client.connection import Connection, connect
from limosa.client.producer import Producer
from limosa.client.session import Mismatch
from limosa.client.table import Row, TableHandle

__all__ = ["Connection", "Mismatch", "Producer", "Row", "TableHandle", "connect"]
