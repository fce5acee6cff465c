"""Lets the tests here share the strategies of `random_spaces`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
