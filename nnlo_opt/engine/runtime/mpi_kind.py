"""Kind and version of an MPI, by what its launcher and its library say of themselves, with what each kind asks for."""

import re
from typing import NamedTuple

#: text of `mpirun --version`, or of the library, that names its kind and version. Debian calls the launcher of Open
#: MPI 4 `mpirun.openmpi`, and under any name but `mpirun` it says that it is "(OpenRTE)"
_KINDS = {
    "Open MPI": r"(?:Open MPI|OpenRTE)\)? v?(\d[\w.]*)",
    "MPICH": r"(?:MPICH |HYDRA build details:\s*)Version:\s*(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library\D*(\d[\w.]*)",
    "Slurm": r"^slurm\S* (\d[\w.]*)",
}
#: version of Open MPI with another launcher (PRRTE), other variables, and ranks that can outlive the death of a rank
_PRRTE = 5
_ROOT = "Set `OMPI_ALLOW_RUN_AS_ROOT=1` and `OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1`, or give `mpirun --allow-run-as-root`."
#: what lets Open MPI start more ranks than there are slots: up to version 4, and from version 5 on
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
        """Return the kind of MPI that describes itself by `text`."""
        found = ((name, re.search(pattern, text, re.MULTILINE)) for name, pattern in _KINDS.items())
        return next((cls(name, match[1]) for name, match in found if match), UNKNOWN)

    @property
    def _major(self) -> int:
        return int(re.match(r"\d*", self.version)[0] or 0)  # type: ignore[index]  # it always matches

    @property
    def lets_ranks_outlive_others(self) -> bool:
        """True for an Open MPI whose ranks can outlive a dead rank (ULFM)."""
        return self.name == "Open MPI" and self._major >= _PRRTE

    @property
    def is_open_mpi_4(self) -> bool:
        """True for an Open MPI before 5, whose launcher knows other variables and options."""
        return self.name == "Open MPI" and self._major < _PRRTE

    @property
    def root_remedy(self) -> str:
        """What lets root start a job; the same words for all versions of Open MPI, and no other MPI asks for any."""
        return _ROOT

    @property
    def slots_remedy(self) -> str:
        """What lets more ranks start than there are slots; variables of the other version have no effect."""
        if self.name != "Open MPI":
            return f"Ask for fewer ranks, or set {_MORE_RANKS[1]} (Open MPI 5), or {_MORE_RANKS[0]} (Open MPI 4)."
        return f"Ask for fewer ranks, or set {_MORE_RANKS[not self.is_open_mpi_4]}."

    @property
    def start_remedy(self) -> str:
        """What may be wrong if no rank starts; empty if this MPI starts as many as it is asked for, also as root."""
        if self.name != "Open MPI":
            return ""
        return f"{self} starts no rank as root, nor more ranks than slots, unless told to. {_ROOT} {self.slots_remedy}"

    def __str__(self) -> str:
        return f"{self.name or 'unknown'} {self.version}".rstrip()


UNKNOWN = MpiKind("", "")
