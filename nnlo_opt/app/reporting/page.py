"""Interactive page of a run, `report.html`: one file that needs neither network nor server.

The page contains plotly.js (https://plotly.com/javascript, MIT) from the package `plotly`, the data of the run as JSON,
and a script that draws the figures. A content security policy forbids all requests. User text is embedded as JSON
without `<`, and inserted as text, never as HTML.
"""

import json
import logging
import re
from html import escape
from importlib.util import find_spec
from pathlib import Path

from nnlo_opt.app.reporting.page_data import page_data
from nnlo_opt.core.base.errors import NnloError
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.trials.ledger import Ledger

logger = logging.getLogger(__name__)

#: file of a run directory
PAGE_NAME = "report.html"


def write_page(run_directory: Path, ledger: Ledger, folder: Path | None = None) -> None:
    """Write `report.html` atomically to a folder, by default the run directory.

    Raises:
        OSError: the file cannot be written.
        NnloError: plotly is not installed.
    """
    data = json.dumps(page_data(ledger, run_directory), separators=(",", ":"), allow_nan=False)
    sources = Path(__file__).parent
    parts = {
        "title": escape(run_directory.resolve().name),
        "style": (sources / "page.css").read_text(encoding="utf-8"),
        "plotly": plotly_js(),
        "data": data.replace("<", "\\u003c"),
        "script": (sources / "page.js").read_text(encoding="utf-8"),
    }
    template = (sources / "page.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)
    atomic_write((folder or run_directory) / PAGE_NAME, page, durable=False)


def wrote_page(run_directory: Path, ledger: Ledger) -> bool:
    """Write the page at the end of a run; return True if successful. Any error is logged, not raised."""
    try:
        write_page(run_directory, ledger)
    except Exception:
        logger.info("%s could not be written.", PAGE_NAME, exc_info=True)
        return False
    return True


def plotly_js() -> str:
    """Return the text of plotly.js without importing the package, which would take longer than everything else."""
    spec = find_spec("plotly")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        path = Path(place) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise NnloError("The package plotly must be installed for the page of a run. Received: none; `pip install plotly`.")
