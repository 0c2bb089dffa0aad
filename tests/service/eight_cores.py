"""`python -m tests.service.eight_cores serve`: a server with a simulated GPU on a machine with eight CPUs."""

import sys
from unittest.mock import patch

from bench.simulated_device import run

if __name__ == "__main__":
    with patch("service.supervisor.available_cpus", return_value=8):
        sys.exit(run())
