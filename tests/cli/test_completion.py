"""Completion scripts, as the shells themselves complete with them."""

import shlex
import shutil
import subprocess

import pytest

from nnlo_opt.cli.tool import COMMANDS

#: what was typed -> some words that complete it, and one that does not
LINES = {
    "OptimizationDriver --hyper-opt s": ("sobol", "--seed"),
    "mpirun -np 5 OptimizationDriver --opt": ("--opt-restore --optimizer", "--epochs"),
    "TrainingDriver --res": ("--restore", "--report"),
    "TrainingDriver --lr": ("--lr --lr-schedule", "--learning-rate"),
    "TrainingDriver --no-o": ("--no-overlap", "--no-shuffle"),
    "nnlo-opt la": ("launch", "plan"),
    "nnlo-opt plan --scheduler ": ("slurm lsf", "--walltime"),
    "GetData mn": ("mnist", "cifar10"),
    "GetData from-arrays --sp": ("--split", "--source"),
    "nnlo-opt completion ": ("bash zsh fish", "show"),
}


@pytest.fixture
def script(tmp_path, printed):
    """Writes the script of a shell."""

    def write(shell):
        path = tmp_path / f"complete.{shell}"
        path.write_text(printed("completion", shell))
        return path

    return write


def answers(shell, program):
    """What a shell prints, one answer a line."""
    done = subprocess.run([shell, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def typed_in_bash(*words):
    """The lines of a program that prints what bash completes the last word with."""
    words_of_bash = f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}"
    return f"{words_of_bash}; _nnlo_opt; printf '%s\\n' \"${{COMPREPLY[*]}}\"\n"


def check(completed):
    for (line, (known, unknown)), words in zip(LINES.items(), completed, strict=True):
        assert set(known.split()) <= set(words.split()), line
        assert unknown not in words.split(), line


def test_bash_completes_what_was_typed(script):
    typed = [typed_in_bash(*line.split(), *[""] * line.endswith(" ")) for line in LINES]
    check(answers("bash", f"source {script('bash')}\n{''.join(typed)}"))


def test_bash_knows_every_option_of_every_command_and_leaves_other_words_to_files(script):
    typed = [typed_in_bash("mpirun", *command.split(), "-") for command in COMMANDS]
    typed += [typed_in_bash("OptimizationDriver", "--model", "net."), "complete -p OptimizationDriver"]
    *known, of_file, entry = answers("bash", f"source {script('bash')}\n{''.join(typed)}")
    for command, words in zip(COMMANDS.values(), known, strict=True):
        assert {flag for option in command.options for flag in option.flags} == set(words.split())
    assert of_file == ""
    assert "-o default" in entry


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_what_was_typed(script):
    typed = "".join(f"echo (complete -C {shlex.quote(line)} | string split -f1 \\t)\n" for line in LINES)
    check(answers("fish", f"source {script('fish')}\n{typed}"))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_takes_the_script(script):
    assert "_nnlo_opt" in answers("zsh", f"source {script('zsh')}; print $_comps[OptimizationDriver]")[0]
