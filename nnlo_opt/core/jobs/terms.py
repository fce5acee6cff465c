"""Terms: numbered periods in which one job coordinates. Who creates the file of a term owns it, for ever.

The next term is one above the greatest that this job knows, by reading or by a creation that failed. So two jobs never
own one term, however old the state of the folder is that they see. A term whose owner died at once is passed over like
that of a silent one.
"""

from contextlib import suppress

from nnlo_opt.core.jobs.files import SharedFiles, term_name


class Terms:
    """Terms that this job knows.

    Args:
        files: shared files.
    """

    def __init__(self, files: SharedFiles) -> None:
        self._files = files
        #: greatest term known to exist; 0 for none
        self.greatest = 0

    def look(self) -> None:
        """Look for later terms."""
        while self._files.read(term_name(self.greatest + 1)) is not None:
            self.greatest += 1

    def pass_over(self, term: int) -> None:
        """Note a term that is known to exist, although it may not be seen yet."""
        self.greatest = max(self.greatest, term)

    def take(self, job: int) -> bool:
        """Try to own the next term; whoever owns it, it is the greatest known afterwards."""
        won = self._files.create(term_name(self.greatest + 1), b"%d\n" % job)
        self.greatest += 1
        return won

    def owner(self, term: int) -> int | None:
        """Return the job that owns a term; None as long as that cannot be read."""
        data = self._files.read(term_name(term)) or b""
        with suppress(ValueError):
            return int(data) if data.endswith(b"\n") else None
        return None
