"""`python -m pulsar_retry` is the `pulsar-retry` command."""

import sys

from pulsar_retry.cli import main

if __name__ == "__main__":
    sys.exit(main())
