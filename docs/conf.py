"""Settings of the site: the pages of the repository as they are, read by Sphinx from its root (`make site`).

The navigation is the table "Documentation" of README.md, and nothing else: a page that is missing there is an error.
"""

import re
import shutil
import sys
from os.path import relpath
from pathlib import Path

from nnlo_opt import __version__

ROOT = Path(__file__).parents[1]

project, release, copyright = "nnlo_opt", __version__, "The nnlo_opt developers"
html_title = f"nnlo_opt {release}"
root_doc = "README"
include_patterns = ["*.md", "docs/**", "examples/README.md", "benchmarks/README.md", "nnlo_opt/*/README.md"]
exclude_patterns = [".*", "build", "data"]  # not even looked at

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 6
html_theme = "furo"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_copy_source = html_show_sourcelink = False
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # tables have no lexer
maximum_signature_line_length, toc_object_entries_show_parents = 100, "hide"

#: in docstrings `this` is code, as on the pages
default_role = "literal"
autodoc_member_order, autoclass_content = "bysource", "both"
autodoc_typehints = "signature"
# A site is made in seconds, without extras: Sphinx also looks for the sources of base classes, which are of frameworks.
autodoc_mock_imports = ["keras", "lightning", "transformers"]
sys.modules |= dict.fromkeys(["tensorflow", "torch"])  # their import fails

#: `FloatVector` in a signature
VECTOR = "~numpy.ndarray[tuple[~typing.Any, ...], ~numpy.dtype[~numpy.float32]]"
#: a row of the table: what a reader wants, and links to pages
ROW = re.compile(r"^\| ([^|]+) \| (\[.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def navigation(text: str) -> str:
    """Return the table of pages as trees of contents, one for each row."""
    trees = []
    for wish, links in ROW.findall(text.partition("\n## Documentation\n")[2].partition("\n## ")[0]):
        pages = "\n".join(f"{title} </{page.removesuffix('.md')}>" for title, page in LINK.findall(links))
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {wish[:1].upper()}{wish[1:]}\n\n{pages}\n```\n")
    return "\n".join(trees)


def read(app, name: str, source: list[str]) -> None:
    """Add the navigation to the front page; lead a link to a folder to the page in it, or nowhere."""
    here = (ROOT / name).parent

    def of_folder(link: re.Match[str]) -> str:
        title, target = link.groups()
        folder = here / target.partition("#")[0]
        if not target.startswith("#") and folder.is_dir():
            page = folder / "README.md"
            return f"[{title}]({relpath(page, here)})" if page.exists() else title
        return link[0]

    source[0] = LINK.sub(of_folder, source[0]) + (navigation(source[0]) if name == root_doc else "")
    # SECURITY is for the page of a repository, and the reference leads to it; pages of parts are read beside the code.
    if name == "SECURITY" or name.startswith("nnlo_opt/"):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def shorten(app, what, name, value, options, *texts: str | None) -> tuple[str | None, ...]:
    """Return signature and type of the result, with the name of the vectors in place of what it stands for."""
    return tuple(text and text.replace(VECTOR, "FloatVector") for text in texts)


def leave_out_options(app, what, name, value, options, lines: list[str]) -> None:
    """Remove the options from what `help` shows of a search: they have a page."""
    if "Options:" in lines:
        del lines[lines.index("Options:") :]


def finish(app, error: Exception | None) -> None:
    """Give the front page the name that servers look for, too."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app) -> None:
    """Connect our own steps."""
    app.connect("source-read", read)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", leave_out_options)
    app.connect("build-finished", finish)
