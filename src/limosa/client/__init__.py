"""What do applications and operators' programs import?

connect() → Connection    for applications: tables to write to and read
operate() → Operator      for operators: also status, requests, moves and runs
"""

from limosa.client.connection import Connection, connect
from limosa.client.operator import Operator, operate
from limosa.client.producer import Producer
from limosa.client.session import Mismatch
from limosa.client.table import Row, TableHandle

__all__ = [
    "Connection",
    "Mismatch",
    "Operator",
    "Producer",
    "Row",
    "TableHandle",
    "connect",
    "operate",
]
