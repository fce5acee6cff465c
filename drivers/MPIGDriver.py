"""`MPIGDriver` for those who run scripts: the same code as the console command."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nnlo_opt.cli.main import mpig_driver

if __name__ == "__main__":
    mpig_driver()
