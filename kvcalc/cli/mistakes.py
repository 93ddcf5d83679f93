"""Mistakes in the words of a command line, each as one line and a hint: what to write instead."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kvcalc.cli.main import ALIASES
from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.questions import QUESTIONS, question
from kvcalc.questions.vocabulary import VOCABULARY

__all__ = ["as_input_error", "option_hint"]

_CLOSE = 0.7
_MAX_SHOWN = 3
_EXAMPLE = "Example: "


def as_input_error(error: Any, words: list[str]) -> InputError:
    """Turn an error of the command line library into one of ours, with a hint.

    Args:
        error: what the library raised.
        words: the words of the command line.
    """
    context: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if context is None:
        what = f"{option} needs a value" if option and "requires an argument" in _one_line(error) else _one_line(error)
        return InputError(what, hint=f"kvcalc {words[0]} --help shows the options")
    path = context.command_path
    if option is not None and hasattr(error, "possibilities"):
        option = _whole_option(option, words)
        return InputError(f"there is no option {option}", hint=option_hint(option, context.command, path=path))
    missing = getattr(error, "param", None)
    if missing is not None and _one_line(error).startswith("Missing "):
        name = max(missing.opts, key=len)
        what = name if name.startswith("-") else f"the argument {name.upper()}"
        return InputError(f"{what} is missing", hint=_stray_hint(words, name) or _example_of(context))
    if hasattr(context.command, "commands") and "No such command" in _one_line(error):
        written, known = _one_line(error).split("'")[1], context.command.commands
        hint = did_you_mean(written, known) or f"subcommands: {', '.join(known)}"
        return InputError(f"{path} has no subcommand {written!r}", hint=hint)
    return _other_error(error, context, words)


def _other_error(error: Any, context: Any, words: list[str]) -> InputError:
    """Return an error about words that belong to no option, or about an option without its value."""
    help_hint = f"{context.command_path} --help shows the options"
    if "extra argument" not in _one_line(error):
        return InputError(_one_line(error), hint=help_hint)
    if "--mmproj" in words[:-1]:
        file = words[words.index("--mmproj") + 1]
        if not file.startswith("-"):
            return InputError(f"--mmproj takes no file: {file}", hint=f"--mmproj-file {file}", parameter="mmproj")
    extra = _one_line(error).rpartition("(")[2].rstrip(")")
    hint = _stray_hint([words[0], *extra.split()], "") or help_hint
    return InputError(f"{extra!r} belongs to no option", hint=hint)


def _one_line(error: Any) -> str:
    return " ".join(error.format_message().split())


def _stray_hint(words: list[str], missing: str) -> str:
    """Return the option that the first word after a command belongs to, where it names a model or an accelerator.

    >>> _stray_hint(["fit", "llama3.1-8b", "--gpu", "h100"], "--model")
    '--model llama3.1-8b'
    >>> _stray_hint(["roofline", "h100"], "--gpu")
    '--gpu h100'
    >>> _stray_hint(["fit", "--gpu", "h100"], "--model")
    ''
    """
    from kvcalc.profiles.resolve import resolve

    stray = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    if missing not in {"", "--model", "--gpu"} or not stray:
        return ""
    if missing != "--gpu" and (stray.endswith((".gguf", ".json", ".yaml")) or resolve(stray, "model") is not None):
        return f"--model {stray}"
    return f"--gpu {stray}" if missing != "--model" and resolve(stray, "hardware") is not None else ""


def _example_of(context: Any) -> str:
    """Return the example of a command's help."""
    help_lines = " ".join((context.command.help or "").split())
    example = help_lines.rpartition(_EXAMPLE)[2] if _EXAMPLE in help_lines else ""
    return f"for example: {example}" if example else f"{context.command_path} --help shows the options"


def _whole_option(option: str, words: list[str]) -> str:
    """Return an option as it was written: the library reads ``-fitt`` letter by letter, and names the first unknown.

    >>> _whole_option("-i", ["fit", "-m", "llama3.1-8b", "-fitt", "1024"])
    '-fitt'
    """
    if len(option) != len("-f") or option in words:
        return option
    written = (word.partition("=")[0] for word in words if word.startswith("-") and not word.startswith("--"))
    return next((word for word in written if option[1] in word), option)


def option_hint(written: str, command: Any, *, path: str) -> str:
    """Return a hint for an option that there is not: by meaning first (--ctx: --context), then by spelling.

    Where the command has nothing like it, what its question says to do instead, then the commands that have it.

    Args:
        written: the option as it was written.
        command: the command that does not have it.
        path: the command's words: ``kvcalc size``.
    """
    word = written.partition("=")[0].lstrip("-").lower().replace("_", "-")
    name = path.partition(" ")[2]
    own = question(ALIASES.get(name, name)) if ALIASES.get(name, name) in QUESTIONS else None
    if own is not None and word in own.instead:
        return own.instead[word]
    meant = _meant(word, command)
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    owners = [each for each in QUESTIONS if f"--{word}" in _flags(each)]
    if owners:
        more = f" and {len(owners) - _MAX_SHOWN} others" if len(owners) > _MAX_SHOWN + 1 else ""
        return f"--{word} is an option of {', '.join(owners[:_MAX_SHOWN] if more else owners)}{more}"
    return f"{path} --help shows the options"


def _meant(word: str, command: Any) -> list[str]:
    """Return the options of a command that a word may mean, the likeliest first."""
    words: dict[str, str] = {}
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    for each in options:
        words |= {flag.lstrip("-"): flag if flag in each.secondary_opts else _long(each)
                  for flag in (*each.opts, *each.secondary_opts)}  # fmt: skip
    for each in options:
        shared = VOCABULARY[_long(each)].meant if _long(each) in VOCABULARY else ()
        words |= {meant: _long(each) for meant in getattr(each, "meant", shared) if meant not in words}
    if word in words:
        return [words[word]]
    close = get_close_matches(word, words, n=_MAX_SHOWN, cutoff=_CLOSE)
    longer = [each for each in words if len(word) > len("kv") and word in each.split("-")]
    return list(dict.fromkeys(words[each] for each in (*close, *longer)))[:_MAX_SHOWN]


def _long(option: Any) -> str:
    return str(next((flag for flag in option.opts if flag.startswith("--")), option.opts[0]))


def _flags(name: str) -> set[str]:
    return {flag for each in question(name).params.values() for flag in each.flags}
