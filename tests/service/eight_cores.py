"""`python -m tests.service.eight_cores serve`: a server on eight CPUs whose event loop is slower than any model."""

import sys
from unittest.mock import patch

from service.__main__ import main

if __name__ == "__main__":
    with (
        patch("service.supervisor.available_cpus", return_value=8),
        patch("service.supervisor.LOOP_TEXTS_PER_S", 1),
    ):
        sys.exit(main())
