"""`python -m limosa` is `limosa`."""

import sys

from limosa.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
