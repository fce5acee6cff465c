"""Detects the kind and version of an MPI from its version text, with the remedies that depend on them."""

import re
from typing import NamedTuple

#: kind -> pattern for the output of `mpirun --version`, or the library's version text. Debian calls the launcher of
#: Open MPI 4 `mpirun.openmpi`, and under any name but `mpirun` it reports "(OpenRTE)"
_KINDS = {
    "Open MPI": r"(?:Open MPI|OpenRTE)\)? v?(\d[\w.]*)",
    "MPICH": r"(?:MPICH |HYDRA build details:\s*)Version:\s*(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library\D*(\d[\w.]*)",
    "Slurm": r"^slurm\S* (\d[\w.]*)",
}
#: first version of Open MPI with the PRRTE launcher, new variables, and ranks that can survive the death of others
_PRRTE = 5
_ROOT = "Set `OMPI_ALLOW_RUN_AS_ROOT=1` and `OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1`, or give `mpirun --allow-run-as-root`."
#: how to let Open MPI start more ranks than slots: up to version 4, and from version 5 on
_MORE_RANKS = (
    "`OMPI_MCA_rmaps_base_oversubscribe=1`, or give `mpirun --oversubscribe`",
    "`PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe`",
)


class MpiKind(NamedTuple):
    """An MPI; both texts are empty if it is unknown."""

    name: str
    version: str

    @classmethod
    def of(cls, text: str) -> "MpiKind":
        """Return the kind of MPI with the version text `text`."""
        found = ((name, re.search(pattern, text, re.MULTILINE)) for name, pattern in _KINDS.items())
        return next((cls(name, match[1]) for name, match in found if match), UNKNOWN)

    @property
    def _major(self) -> int:
        return int(re.match(r"\d*", self.version)[0] or 0)  # type: ignore[index]  # it always matches

    @property
    def has_ulfm(self) -> bool:
        """True for an Open MPI whose ranks can survive the death of others (ULFM)."""
        return self.name == "Open MPI" and self._major >= _PRRTE

    @property
    def is_open_mpi_4(self) -> bool:
        """True for an Open MPI before 5, whose launcher has different variables and options."""
        return self.name == "Open MPI" and self._major < _PRRTE

    @property
    def root_remedy(self) -> str:
        """How root can start a job; applies to every Open MPI, no other MPI restricts root."""
        return _ROOT

    @property
    def slots_remedy(self) -> str:
        """How to start more ranks than slots; the variables of one version have no effect on the other."""
        if self.name != "Open MPI":
            return f"Ask for fewer ranks, or set {_MORE_RANKS[1]} (Open MPI 5), or {_MORE_RANKS[0]} (Open MPI 4)."
        return f"Ask for fewer ranks, or set {_MORE_RANKS[not self.is_open_mpi_4]}."

    @property
    def start_remedy(self) -> str:
        """What to try if no rank starts; empty if this MPI starts any number of ranks, even as root."""
        if self.name != "Open MPI":
            return ""
        return f"By default {self} starts no ranks as root, and no more ranks than slots. {_ROOT} {self.slots_remedy}"

    def __str__(self) -> str:
        return f"{self.name or 'unknown'} {self.version}".rstrip()


UNKNOWN = MpiKind("", "")
