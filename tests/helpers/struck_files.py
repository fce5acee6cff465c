"""A process that stands still at one of its operations on files, while others work."""

from contextlib import contextmanager

from nnlo_opt.core.base import safe_path
from nnlo_opt.core.base.safe_path import SafePath


class Struck:
    """Counts the moments before operations on files, and at one of them calls a function.

    There is one before a path is looked up, one before it is used, and one before each part of a folder is removed.
    """

    def __init__(self, moment=-1, act=None):
        self._moment, self._act = moment, act
        self.n_moments = 0
        self._acts = False

    def __call__(self):
        if self._acts:
            return
        self.n_moments += 1
        if self.n_moments - 1 == self._moment:
            self._acts = True
            self._act()
            self._acts = False


@contextmanager
def stopped_at(monkeypatch, moment=-1, act=None):
    """Within, the operation number `moment` on files waits until `act` has been called."""
    struck, within, remove = Struck(moment, act), SafePath._within, safe_path._remove_within

    @contextmanager
    def looked_up(self):
        struck()
        with within(self) as folder:
            struck()
            yield folder

    def removed(*place):
        struck()
        remove(*place)

    with monkeypatch.context() as patch:
        patch.setattr(SafePath, "_within", looked_up)
        patch.setattr(safe_path, "_remove_within", removed)
        yield struck


def content_of(folder):
    """Path -> bytes of all files below a folder."""
    return {path.below(folder): path.read_bytes() for path in folder.walk() if not path.is_dir()}
