import pytest


@pytest.fixture(autouse=True)
def _reports_are_no_subject(request: pytest.FixtureRequest) -> None:
    """Have reports written without another process, but for tests of that process."""
    if request.path.name != "test_page_of_script.py":
        request.getfixturevalue("reports_here")
