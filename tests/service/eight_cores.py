"""`python -m tests.service.eight_cores serve`: a server with a simulated GPU on a machine with eight CPUs.

Event loops count as slow, so that the GPU is faster than four of them even while other tests slow down its warm-up.
"""

import sys
from unittest.mock import patch

from bench.simulated_device import run

if __name__ == "__main__":
    with (
        patch("service.supervisor.available_cpus", return_value=8),
        patch("service.supervisor.LOOP_TEXTS_PER_S", 1_000),
    ):
        sys.exit(run())
