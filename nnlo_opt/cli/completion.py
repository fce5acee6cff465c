"""Shell completion scripts, generated from the tables of options.

A script contains all words, because calling a command at every key would take half a second. After `mpirun` the
driver's words are completed, too.
"""

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import get_args

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.getdata import DATA_SETS
from nnlo_opt.cli.tool import COMMANDS, SUBCOMMANDS
from nnlo_opt.engine.models.builders import builtin_names

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_nnlo_opt() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= words= i
    [[ $word == "=" ]] && word=
    [[ $before == "=" ]] && before=${{COMP_WORDS[COMP_CWORD-2]}}
    for ((i = 0; i < COMP_CWORD; i++)); do
        case "$command ${{COMP_WORDS[i]##*/}}" in
            {programs}) command=${{COMP_WORDS[i]##*/}} ;;
            {subcommands}) command+=" ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$command $before" in
        {cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _nnlo_opt {names} mpirun mpiexec
"""


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print a script that completes all commands in a shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell, for example: nnlo-opt completion bash >> ~/.bashrc")
    print(_script(parser.values(argv).shell), end="")


def _script(shell: str) -> str:
    """Return the script of one of `SHELLS`."""
    words = {"nnlo-opt completion": SHELLS, "GetData": DATA_SETS, "BuildModel": builtin_names()}
    if shell == "fish":
        return "\n".join(_fish(words)) + "\n"
    words |= {"nnlo-opt": SUBCOMMANDS, "": ("OptimizationDriver", "TrainingDriver")}
    names = [command for command in (*COMMANDS, "nnlo-opt") if " " not in command]
    cases = [f'"{command} {flag}") words="{" ".join(known)}" ;;' for command, flag, known, _ in _flags() if known]
    for command in sorted({*COMMANDS, *words}, reverse=True):  # nnlo-opt after its subcommands
        known = [*words.get(command, ()), *(flag for name, flag, *_ in _flags() if name == command)]
        cases.append(f'"{command} "*) words="{" ".join(known)}" ;;')
    text = _BASH.format(
        programs="|".join(f'*" {name}"' for name in names),
        subcommands="|".join(['"GetData from-arrays"', *(f'"nnlo-opt {name}"' for name in SUBCOMMANDS)]),
        cases="\n        ".join(cases),
        names=" ".join(names),
    )
    zsh = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
    return zsh * (shell == "zsh") + text


def _flags() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield command, form, known values (none for a file, at least [""]) and help of every option."""
    for name, command in COMMANDS.items():
        for option in command.options:
            known = [text for text in get_args(option.kind.type) if isinstance(text, str)] or [""]
            for flag in option.flags:
                yield name, flag, known if option.metavar else [], option.help.split(";")[0]


def _fish(words: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of the script of fish."""

    def of(command: str) -> str:
        program, _, sub = command.partition(" ")
        return f"complete -c {program}" + f" -n '__fish_seen_subcommand_from {sub}'" * bool(sub)

    for command, flag, known, text in _flags():
        form = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
        value = f" -x -a '{' '.join(known)}'" if any(known) else " -r" * bool(known)
        yield f"{of(command)} {form}{value} -d {quote(text)}"
    for command, first in words.items():
        yield f"{of(command)} -a '{' '.join(first)}'"
    yield f"complete -c nnlo-opt -n __fish_use_subcommand -x -a '{' '.join(SUBCOMMANDS)}'"
    yield "complete -c mpirun -x -a '(__fish_complete_subcommand -n -np)'"
