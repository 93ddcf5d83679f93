"""``kvcalc completion``: a script of fixed words, so that completing starts no program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Shell = Annotated[str, Argument(help="bash, zsh or fish.")]

_OUTPUTS = "table json jsonl csv md"
_SHELLS = ("bash", "zsh", "fish")


def command(shell: Shell) -> None:
    """Shell completion of commands, options, models and accelerators.

    bash and zsh: put `source <(kvcalc completion bash)` into ~/.bashrc (zsh: ~/.zshrc). fish: write it to
    ~/.config/fish/completions/kvcalc.fish. The words are those of this version; write them again after an update.

    Example: kvcalc completion bash
    """
    if shell not in _SHELLS:
        raise InputError(f"there is no completion for {shell!r}", hint=f"shells: {', '.join(_SHELLS)}")
    sys.stdout.write(_fish() if shell == "fish" else _bash(zsh=shell == "zsh"))


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield each command as it is typed, and its parsed form."""
    from kvcalc.cli.app import load_command
    from kvcalc.cli.main import ALIASES, COMMANDS

    for name in (*COMMANDS, *ALIASES):
        loaded = load_command(name)
        yield name, loaded
        for inner, command in getattr(loaded, "commands", {}).items():
            yield f"{name} {inner}", command


def _options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def _flags(command: Any) -> list[str]:
    return [flag for option in _options(command) for flag in (*option.opts, *option.secondary_opts)]


def _words() -> dict[str, str]:
    """Return the words that may follow options whose values are known, by option."""
    from kvcalc import api

    models, gpus = " ".join(api.profile_names("model")), " ".join(api.profile_names("hardware"))
    return {"--model": models, "-m": models, "--draft": models, "--gpu": gpus, "--output": _OUTPUTS, "-o": _OUTPUTS,
            "--units": "iec si"}  # fmt: skip


def _bash(*, zsh: bool) -> str:
    by_command = dict(_commands())
    top = " ".join(name for name in by_command if " " not in name)
    cases = "".join(f"    '{name}') words='{' '.join([*_inner(name, by_command), *_flags(command), '--help'])}' ;;\n"
                    for name, command in by_command.items())  # fmt: skip
    values = "".join(f"    {flag}) words='{words}' ;;\n" for flag, words in _words().items())
    head = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_kvcalc() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=''
  local command=${{COMP_WORDS[1]}}
  local inner="$command ${{COMP_WORDS[2]}}"
  case "$inner" in {_either(by_command)}) [ "$COMP_CWORD" -gt 2 ] && command=$inner ;; esac
  if [ "$COMP_CWORD" -eq 1 ]; then words='{top} --help --version'; else
    case "$command" in
{cases}    esac
    case "$before" in
{values}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _kvcalc kvcalc
"""


def _inner(name: str, by_command: dict[str, Any]) -> list[str]:
    return list(getattr(by_command[name], "commands", {}))


def _either(by_command: dict[str, Any]) -> str:
    return "|".join(f"'{name}'" for name in by_command if " " in name)


def _fish() -> str:
    from kvcalc.cli.main import ALIASES, COMMANDS

    named = {**COMMANDS, **{name: COMMANDS[other] for name, other in ALIASES.items()}}
    lines = ["complete -c kvcalc -f"]
    lines += [
        f"complete -c kvcalc -n __fish_use_subcommand -a {name} -d {_quoted(text)}" for name, text in named.items()
    ]
    words = _words()
    for name, command in _commands():
        if " " in name:
            outer, inner = name.split()
            lines.append(f"complete -c kvcalc -n '__fish_seen_subcommand_from {outer}' -a {inner}")
        for option in _options(command):
            lines.append(_fish_option(name.split()[-1], option, words))
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _fish_option(command: str, option: Any, words: dict[str, str]) -> str:
    names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
             for flag in (*option.opts, *option.secondary_opts)]  # fmt: skip
    known = next((words[flag] for flag in option.opts if flag in words), "")
    values = f" -x -a {_quoted(known)}" if known else "" if option.is_flag else " -r -F"
    seen = f"'__fish_seen_subcommand_from {command}'"
    return f"complete -c kvcalc -n {seen} {' '.join(names)}{values} -d {_quoted(option.help or '')}"


def _quoted(text: Sequence[str] | str) -> str:
    return "'" + str(text).replace("\\", "\\\\").replace("'", "\\'") + "'"
