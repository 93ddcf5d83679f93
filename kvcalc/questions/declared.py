"""Questions declared once: their parameters, read by one rule for command lines, check files, pages and Python.

A question is a class. Its docstring is the command's help, its `Param` attributes are the options, and ``answer`` is
the pure function behind it. Groups of parameters that several questions share are base classes (`groups`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kvcalc.core import readers
from kvcalc.core.errors import InputError, about, did_you_mean
from kvcalc.core.records import dataclass
from kvcalc.questions.vocabulary import VOCABULARY, Spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.readers import Reader
    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["Answer", "Param", "Question", "param"]

_FLAG = "flag"
_KINDS: Mapping[Any, str] = {readers.whole: "int", readers.number: "float", readers.flag: _FLAG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a question.

    Args:
        flags: its spellings on a command line; ``--yes/--no`` for what is true or false.
        help: what it is, in a line.
        read: reads a value given as text or as a Python object.
        default: the value where none is given, as a user would write it.
        is_required: whether it must be given.
        repeats: whether it may be given several times.
        metavar: the word for its value in help, where it is not that of its kind.
        engines: the engines that have it; empty where it is not an engine's option.
        on_page: whether a page may set it: not what opens or writes a file.
        page_max: the most that a page may ask for; no bound of its own where left out.
        is_argument: whether it stands on the command line without a flag.
        heading: the heading of help that it stands under; that of its engine, or of its question, where empty.
        meant: words that people try for it, which an error answers with its name.
        otherwise: what applies where it is left out and has no default.
    """

    flags: tuple[str, ...]
    help: str
    read: Reader
    default: Any = None
    is_required: bool = False
    repeats: bool = False
    metavar: str | None = None
    engines: tuple[str, ...] = ()
    on_page: bool = True
    page_max: int | None = None
    is_argument: bool = False
    heading: str = ""
    meant: tuple[str, ...] = ()
    otherwise: str = ""

    @property
    def kind(self) -> str:
        """The kind of its value: ``str``, ``int``, ``float`` or ``flag``."""
        return _KINDS.get(self.read, "str")

    @property
    def name(self) -> str:
        """Its name in messages: its first long flag without dashes."""
        long = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return long.partition("/")[0].lstrip("-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its keys in a check file: its long flags with ``_`` for ``-``."""
        long = [flag.partition("/")[0] for flag in self.flags if flag.startswith("--")]
        return tuple(flag.lstrip("-").replace("-", "_") for flag in long)

    def value(self, given: Any) -> Any:
        """Return the given value, read; the default where nothing was given.

        Raises:
            KvcalcError: a value that it does not take, with its name as the error's parameter.
        """
        given = self.default if given is None or (self.repeats and not given) else given
        if given is None:
            return () if self.repeats else None
        with about(self.name):
            return self.read(given, self.name)


_UNSHARED = Spelling()
_ENGINE_HEADINGS = {("vllm",): "vLLM", ("sglang",): "SGLang", ("llama.cpp",): "llama.cpp"}


def param(*flags: str, help: str, read: Reader = readers.text, **more: Any) -> Any:  # noqa: A002  as typer names it
    """Declare a parameter, with what `VOCABULARY` says of its first flag; arguments as those of `Param`."""
    shared = VOCABULARY.get(next((flag for flag in flags if flag.startswith("--")), "").partition("/")[0], _UNSHARED)
    engines = more.get("engines", ())
    more.setdefault("heading", shared.heading or _ENGINE_HEADINGS.get(engines, "Engine" if engines else ""))
    more.setdefault("meant", shared.meant)
    more.setdefault("otherwise", shared.otherwise)
    return Param(flags=(*flags, *(flag for flag in shared.also if flag not in flags)), help=help, read=read, **more)


class Answer(NamedTuple):
    """A question's answer.

    Args:
        report: the report.
        explained: returns the formulas behind it; none where there are none.
        remarks: what was assumed in place of what was not given.
        passed: whether what was checked holds.
        profiles: profiles to write once all is printed, each with its file; a profile that was not made is none.
    """

    report: Any
    explained: Callable[[], Sequence[ExplainedStep]] | None = None
    remarks: tuple[str, ...] = ()
    passed: bool = True
    profiles: tuple[tuple[HardwareProfile | Calibration | None, str | None], ...] = ()


def _headed(each: Param, heading: str) -> Param:
    return each if each.heading else replace(each, heading=heading)


def _without(each: Param, taken: set[str]) -> Param:
    """Return a parameter without the flags that are taken, and take its own."""
    free = tuple(flag for flag in each.flags if flag not in taken)
    taken.update(free)
    return each if free == each.flags else replace(each, flags=free)


class Question:
    """A question with its parameters' values as attributes.

    ``params`` holds the parameters by attribute: the question's own first, then those of its groups in the order of the
    bases; ``named`` are those that were given. ``has_chart`` and ``explains`` say whether its report can be drawn and
    its numbers be traced to formulas; a page asks for at most ``page_counts`` numbers in a list. ``heading`` is
    the heading of help of parameters that name none; ``engines`` are those that it serves, all where empty: options of
    others are taken and refused, but stand in no help. ``instead`` says what to do for options that people try here
    and this question does not have. ``progress`` is told how far the answer is, where it takes long.
    """

    params: ClassVar[Mapping[str, Param]] = {}
    has_chart: ClassVar[bool] = False
    page_counts: ClassVar[int] = 64
    explains: ClassVar[bool] = False
    heading: ClassVar[str] = "Options"
    engines: ClassVar[tuple[str, ...]] = ()
    # a speed on devices and the host belongs to the placement that reaches it
    instead: ClassVar[Mapping[str, str]] = {
        "device": "kvcalc fit --device places the layers and prints the decode and prefill speed",
    }

    @staticmethod
    def progress(*done: Any) -> None:
        """Take no notice of how far the answer is; a front end puts its own function in place."""

    def __init_subclass__(cls) -> None:
        """Collect the parameters, each flag for the first that has it."""
        own = {name: _headed(value, cls.heading) for name, value in vars(cls).items() if isinstance(value, Param)}
        shared = [base.params for base in cls.__bases__ if issubclass(base, Question)]
        every = {**own, **{name: each for params in shared for name, each in params.items() if name not in own}}
        taken: set[str] = set()
        cls.params = {name: _without(each, taken) for name, each in every.items()}

    def __init__(self, **given: Any) -> None:
        """Read the values that were given; the others are the defaults.

        Raises:
            InputError: an unknown parameter, or one missing.
            KvcalcError: a value that a parameter does not take.
        """
        unknown = next((name for name in given if name not in self.params), None)
        if unknown is not None:
            hint = did_you_mean(unknown, self.params) or f"parameters: {', '.join(self.params)}"
            raise InputError(f"there is no parameter {unknown!r}", hint=hint)
        self.named = tuple(name for name, value in given.items() if self._is_named(name, value))
        for name, each in self.params.items():
            value = each.value(given.get(name))
            if each.is_required and value is None:
                raise InputError(f"{each.name} is missing", parameter=each.name)
            setattr(self, name, value)

    def _is_named(self, name: str, value: Any) -> bool:
        """Whether a value says more than the default; the text of a model, which has none, takes long to write."""
        default = self.params[name].default
        return value not in (None, (), []) and (default is None or str(value) != str(default))

    @classmethod
    @cache
    def spelled(cls) -> Mapping[str, str]:
        """Return every key that a check file may write, with the parameter that it sets."""
        return {key: name for name, each in cls.params.items() for key in (name, *each.spellings)}

    def given(self, group: type[Question]) -> dict[str, Any]:
        """Return the values of a group's parameters that are not left out."""
        values = {name: getattr(self, name) for name in group.params}
        return {name: value for name, value in values.items() if value not in (None, ())}

    def answer(self) -> Answer:
        """Return the answer.

        Raises:
            KvcalcError: parameters that do not go together, or what cannot be computed.
        """
        raise NotImplementedError
