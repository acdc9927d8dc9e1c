"""How does a node with small files run? As `limosa serve node`, with other limits of its storage.

A few thousand rows are enough for segments and for several log files.
"""

import sys
from functools import partial

from limosa.cli.main import main
from limosa.runtime import processes
from limosa.storage.volume import StorageSettings

SMALL = StorageSettings(
    log_file_bytes=256 << 10, log_bytes_max=4 << 20, replica_memory_bytes=512 << 10
)

if __name__ == "__main__":
    setattr(processes, "NodeConfig", partial(processes.NodeConfig, storage=SMALL))  # noqa: B010
    sys.exit(main())
