from pathlib import Path

from nnlo_opt.cli import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def test_the_page_of_options_is_the_table():
    remedy = "write it anew: python -m nnlo_opt.cli.reference > docs/reference/options.md"
    assert PAGE.read_text() == reference.page(), remedy
