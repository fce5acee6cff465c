"""Batch scripts for searches, for each scheduler or from a user's template; pure functions."""

import math
import re
import shlex
from collections.abc import Sequence

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.tools.launcher.planning import JobPlan

SCHEDULERS = ("slurm", "pbs", "lsf")
#: seconds before the end of an allocation at which the script receives SIGUSR1
NOTICE_S = 120
#: shortest allocation in seconds that leaves time before the notice
LEAST_S = 300
#: default file name of a script
SCRIPT_NAME = "job.sh"
_PLACEHOLDER = re.compile(r"\{\{([^{}\n]*)\}\}")
#: placeholder -> option that it needs
_OPTION_OF = {"account": "--account", "partition": "--partition", "modules": "--modules", "directives": "--scheduler"}
_UNTRIED = {
    "pbs": "# Written from the manuals of OpenPBS and PBS Pro, and not tried on one.",
    "lsf": "# Written from the manuals of LSF, and not tried on one.",
}


class BatchJob(Frozen):
    """Resources and command of a batch script."""

    plan: JobPlan
    #: words of the command, quoted for the shell
    command: tuple[str, ...]
    #: time limit of one allocation in seconds, in whole minutes
    walltime_s: float
    #: one of `SCHEDULERS`; "" for none
    scheduler: str = ""
    #: megabytes to request per node; None for the site's default
    memory_mb: int | None = None
    cores_per_rank: int = 1
    gpus_per_node: int = 0
    #: account or project; "" for the user's default
    account: str = ""
    #: partition or queue; "" for the site's default
    partition: str = ""
    modules: tuple[str, ...] = ()
    #: line that activates the environment; "" for that of the submitting shell
    activate: str = ""
    #: file name of the script, for schedulers where a job must resubmit itself to continue
    script_name: str = SCRIPT_NAME

    @property
    def clock(self) -> str:
        """Time limit of one allocation as HH:MM:SS."""
        hours, minutes = divmod(int(self.walltime_s) // 60, 60)
        return f"{hours:02d}:{minutes:02d}:00"

    @property
    def fullest_mb(self) -> int:
        """Requested megabytes per node, or else those planned for the fullest node."""
        return self.memory_mb or max(self.plan.megabytes())

    @property
    def ranks_on_a_node(self) -> int:
        return min(self.plan.topology.world_size, self.plan.ranks_per_node)

    def directives(self) -> list[str]:
        """Return the lines for the scheduler."""
        untried = [_UNTRIED[self.scheduler]] if self.scheduler in _UNTRIED else []
        return untried + {"slurm": self._slurm, "pbs": self._pbs, "lsf": self._lsf}[self.scheduler]()

    def setup(self) -> list[str]:
        """Return the shell lines that set up the environment."""
        lines = ['cd "$PBS_O_WORKDIR" || exit'] if self.scheduler == "pbs" else []
        if self.modules:
            lines.append(f"module load {' '.join(self.modules)} || exit")
        if self.activate:
            lines.append(f"{self.activate} || exit")
        if self.cores_per_rank > 1:
            lines.append(f"export OMP_NUM_THREADS={self.cores_per_rank}")
        return lines

    def run(self) -> list[str]:
        """Return the shell lines that run the launcher, forward signals to it, and continue the job afterwards."""
        line = " ".join(self.command)
        lines = [
            "# The shell passes a signal to the launcher ($!), then waits for its end. SIGTERM cancels the job.",
            "cancelled=",
            "trap 'kill -USR1 $!' USR1",
            "trap 'cancelled=yes; kill -USR1 $!' TERM",
        ]
        if self.scheduler == "pbs":
            seconds = int(self.walltime_s) // 60 * 60 - NOTICE_S
            lines.append("# PBS sends no signal before the end of the walltime, so `timeout` does.")
            line = f"timeout --foreground --preserve-status --signal=USR1 {seconds} {line}"
        lines += [
            f"{line} &",
            "# A signal interrupts the wait; the last one returns the code of what has ended.",
            'while kill -0 "$!" 2> /dev/null; do wait "$!"; done',
            'wait "$!"; code=$?',
        ]
        if self.scheduler == "slurm":
            lines.append('if [ "$code$cancelled" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi')
        if self.scheduler == "pbs":
            lines.append("# PBS lets only its operators requeue a job: it submits its own script again.")
            lines.append(f'if [ "$code$cancelled" = 75 ]; then qsub {shlex.quote(self.script_name)}; fi')
        return [*lines, 'exit "$code"']

    def script(self) -> str:
        """Return the batch script."""
        # A login shell defines `module`, regardless of the scheduler.
        shell = "#!/bin/bash -l" if self.modules else "#!/bin/bash"
        setup = self.setup()
        lines = [shell, *self.directives(), "", *setup, *[""] * bool(setup), *self.run()]
        return "\n".join(lines)

    def placeholders(self) -> dict[str, str]:
        """Return placeholder -> text for a template; "" if the option was not given."""
        return {
            "ranks": str(self.plan.topology.world_size),
            "nodes": str(self.plan.n_nodes),
            "ranks_per_node": str(self.ranks_on_a_node),
            "cores_per_rank": str(self.cores_per_rank),
            "gpus_per_node": str(self.gpus_per_node),
            "memory_mb": str(self.fullest_mb),
            "walltime": self.clock,
            "walltime_s": str(int(self.walltime_s) // 60 * 60),
            "notice_s": str(NOTICE_S),
            "account": self.account,
            "partition": self.partition,
            "modules": " ".join(self.modules),
            "directives": "\n".join(self.directives()) if self.scheduler else "",
            "setup": "\n".join(self.setup()),
            "command": " ".join(self.command),
            "run": "\n".join(self.run()),
        }

    def filled(self, template: str, name: str) -> str:
        """Return a template with its placeholders `{{name}}` replaced.

        Raises:
            ConfigurationError: a placeholder is unknown, its option is missing, or no placeholder runs the search.
        """
        known, found = self.placeholders(), [word.strip() for word in _PLACEHOLDER.findall(template)]
        for word in found:
            if word not in known:
                raise ConfigurationError(
                    f"Placeholders of a template must be among {', '.join(known)}. Received: {{{{{word}}}}} in "
                    f"`{name}`.{did_you_mean(word, known)}"
                )
            if word in _OPTION_OF and not known[word]:
                raise ConfigurationError(
                    f"The placeholder {{{{{word}}}}} needs the option `{_OPTION_OF[word]}`. Received: no such option "
                    f"for `{name}`. Give it, or take the placeholder out."
                )
        if not {"run", "command"} & set(found):
            raise ConfigurationError(
                "A template must start the search by the placeholder {{run}} or {{command}}. Received: neither in "
                f"`{name}`. Add a line {{{{run}}}}, which also passes signals on."
            )
        return _PLACEHOLDER.sub(lambda match: known[match[1].strip()], template).rstrip("\n")

    def _slurm(self) -> list[str]:
        lines = [
            f"#SBATCH --nodes={self.plan.n_nodes}",
            f"#SBATCH --ntasks={self.plan.topology.world_size}",
            f"#SBATCH --ntasks-per-node={self.ranks_on_a_node}",
            f"#SBATCH --time={self.clock}",
            f"#SBATCH --signal=B:USR1@{NOTICE_S}",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
        ]
        asked = {
            "cpus-per-task": self.cores_per_rank if self.cores_per_rank > 1 else "",
            "mem": f"{self.memory_mb}M" if self.memory_mb else "",
            "gpus-per-node": self.gpus_per_node or "",
            "account": self.account,
            "partition": self.partition,
        }
        return lines + [f"#SBATCH --{name}={value}" for name, value in asked.items() if value]

    def _pbs(self) -> list[str]:
        size, per_node = self.plan.topology.world_size, self.ranks_on_a_node
        full, rest = divmod(size, per_node)
        chunks = [(full, per_node), (1, rest)] if rest else [(full, per_node)]
        lines = [
            f"#PBS -l select={'+'.join(self._chunk(n, ranks) for n, ranks in chunks)}",
            "#PBS -l place=scatter",
            f"#PBS -l walltime={self.clock}",
            "#PBS -j oe",
            "#PBS -r y",
        ]
        asked = {"-A": self.account, "-q": self.partition}
        return lines + [f"#PBS {name} {value}" for name, value in asked.items() if value]

    def _chunk(self, n_nodes: int, n_ranks: int) -> str:
        parts = [str(n_nodes), f"ncpus={n_ranks * self.cores_per_rank}", f"mpiprocs={n_ranks}"]
        if self.cores_per_rank > 1:
            parts.append(f"ompthreads={self.cores_per_rank}")
        if self.memory_mb:
            # The last node has fewer ranks, and requests its share.
            parts.append(f"mem={math.ceil(self.memory_mb * n_ranks / self.ranks_on_a_node)}mb")
        if self.gpus_per_node:
            parts.append(f"ngpus={self.gpus_per_node}")
        return ":".join(parts)

    def _lsf(self) -> list[str]:
        needs = [f"span[ptile={self.ranks_on_a_node}]"]
        if self.memory_mb:
            needs.append(f"rusage[mem={self.memory_mb}MB]")
        if self.cores_per_rank > 1:
            needs.append(f"affinity[core({self.cores_per_rank})]")
        lines = [
            f"#BSUB -n {self.plan.topology.world_size}",
            f'#BSUB -R "{" ".join(needs)}"',
            f"#BSUB -W {self.clock.removesuffix(':00')}",
            f"#BSUB -wa USR1 -wt {NOTICE_S // 60}",
            "#BSUB -r",
            '#BSUB -Q "75"',
        ]
        asked = {
            "-gpu": f'"num={self.gpus_per_node}"' if self.gpus_per_node else "",
            "-P": self.account,
            "-q": self.partition,
        }
        return lines + [f"#BSUB {name} {value}" for name, value in asked.items() if value]


def activation(environment: str, files: Sequence[str]) -> str:
    """Return the shell line that activates an environment with these files in `bin`; "" if it has no Python."""
    if "activate" in files:
        return f". {shlex.quote(f'{environment}/bin/activate')}"
    return f'export PATH={shlex.quote(f"{environment}/bin")}:"$PATH"' if "python" in files else ""
