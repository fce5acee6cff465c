#!/usr/bin/env python
"""Runs the command after which this file is called.

All files in `drivers/` are the same, and `nnlo-opt examples --legacy` writes further copies.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    above = Path(__file__).resolve().parents[1]
    if (above / "nnlo_opt").is_dir():  # a checkout
        sys.path.insert(0, str(above))
    from nnlo_opt.cli.main import script

    script(__file__)
