"""The questions of a page: those that are declared, within a page's limits, its simulations and demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc import api
from kvcalc.core.errors import InputError, UnknownNameError, about
from kvcalc.core.readers import names_each
from kvcalc.explore.fields import Values
from kvcalc.questions import QUESTIONS as DECLARED
from kvcalc.questions import question
from kvcalc.questions.declared import Answer
from kvcalc.questions.machines import host_bandwidth_of, is_amount
from kvcalc.questions.simulate import LoadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.simulate import RunSoFar
    from kvcalc.questions.declared import Question as Declared

    Asked = TypeVar("Asked", bound=Declared)

__all__ = ["QUESTIONS", "Question", "asked_question", "looked_up", "page_params"]

_MAX_ROWS = 64
_DEFAULT_CONFIG = "config.json"
# Parameters that may list cards.
_LISTS = ("devices", "gpu")
_LOOKED_UP: dict[str, Callable[[str], Any]] = {
    "model": api.catalogue_model,
    "gpu": api.catalogue_hardware,
    "draft": api.catalogue_model,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One report that a page can ask for.

    Args:
        command: the words of the command that prints the same.
        fields: what it can be asked with.
        ask: returns the answer to values, with a pasted model in place of a named one where there is one.
        views: its charts.
        slow: whether it is a simulation, which waits its turn behind others.
        live: whether it tells what it has come to before its answer: ``ask`` then takes ``so_far`` and ``within_s``.
    """

    command: str
    fields: tuple[str, ...]
    ask: Callable[..., Answer]
    views: tuple[str, ...] = ("",)
    slow: bool = False
    live: bool = False

    @property
    def takes_config(self) -> bool:
        """Whether a pasted config can stand for the model."""
        return "model" in self.fields

    def command_line(self, values: Values, *, pasted: bool) -> str:
        """Return the command that prints the same numbers."""
        words = ["kvcalc", *self.command.split()]
        if pasted:
            words += ["--model", _DEFAULT_CONFIG]
        for name, text in values.given:
            if text in ("true", "false"):
                words += [f"--{name}"] if text == "true" else self._off(name)
            else:
                words += [f"--{name}", quote(text)]
        return " ".join(words)

    def _off(self, name: str) -> list[str]:
        """Return the flag that says no, where there is one."""
        params = question(self.command).params if self.command in DECLARED else {}
        flags = [flag for each in params.values() if each.name == name for flag in each.flags]
        return [flag.partition("/")[2] for flag in flags if "/" in flag]


def looked_up(load: Callable[[str], Any], name: str) -> Any:
    """Return a profile by its name in the catalogue.

    Raises:
        UnknownNameError: there is none; a page cannot name a file instead.
    """
    try:
        return load(name)
    except UnknownNameError as error:
        raise UnknownNameError(error.what, hint=error.hint.replace("; a profile file works too", "")) from error


def _named(name: str, what: str) -> str:
    """Return the name of a card of the catalogue, or a memory where devices are named; nothing else is opened.

    Raises:
        InputError: this machine, which is no page's to ask about.
        UnknownNameError: no such card.
    """
    if what == "device" and name.strip().lower() == "this":
        raise InputError("a page names its devices", hint="kvcalc devices lists this machine's")
    if what == "device" and (is_amount(name) or name.strip().lower() == "cpu"):
        return name
    looked_up(api.catalogue_hardware, name.strip())
    return name


def page_params(kind: type[Declared]) -> dict[str, str]:
    """Return the fields that a page may ask a declared question with, and the parameter that each sets."""
    return {each.name: name for name, each in kind.params.items() if each.on_page and not each.is_argument}


def asked_question(kind: type[Asked], texts: Mapping[str, Any], pasted: ModelProfile | None = None) -> Asked:
    """Return a declared question as the fields of a page ask it, its profiles from the catalogue alone.

    Args:
        kind: the question.
        texts: the fields, by their names on the page.
        pasted: a model in place of a named one.

    Raises:
        KvcalcError: a model or accelerator that is missing or not known, or a value that cannot be read.
    """
    names = page_params(kind)
    given = {names[name]: text for name, text in texts.items() if name in names}
    for name in _LISTS:
        if name in given and kind.params[name].read is names_each:
            with about(kind.params[name].name):
                given[name] = tuple(_named(each, kind.params[name].name) for each in names_each(given[name], name))
    if "host" in given and host_bandwidth_of(str(given["host"])) is None:
        with about("host"):
            looked_up(api.catalogue_hardware, str(given["host"]).strip())
    for name, load in _LOOKED_UP.items():
        if isinstance(given.get(name), str):
            with about(name):
                given[name] = looked_up(load, str(given[name]).strip())
    if pasted is not None:
        given["model"] = pasted
    for name, missing in (("model", "choose a model"), ("gpu", "choose an accelerator")):
        if name in kind.params and kind.params[name].is_required and name not in given:
            raise InputError(missing, parameter=name)
    asked = kind(**given)
    _check_limits(asked)
    return asked


def _check_limits(asked: Declared) -> None:
    """Refuse what takes a page too long."""
    for name, each in asked.params.items():
        if each.page_max is not None and (getattr(asked, name) or 0) > each.page_max:
            command = "simulate" if isinstance(asked, LoadOptions) else "demo"
            what = f"{each.name} must be at most {each.page_max:,} here"
            raise InputError(what, hint=f"kvcalc {command} takes more", parameter=each.name)
    lists = {each.name: value for name, each in asked.params.items()
             if isinstance(value := getattr(asked, name), tuple) and value and isinstance(value[0], int)}  # fmt: skip
    for name, value in lists.items():
        if len(value) > asked.page_counts:
            what = f"{name} takes at most {asked.page_counts} numbers here, not {len(value):,}"
            raise InputError(what, hint="widen the step", parameter=name)
    rows = prod(map(len, lists.values()))
    if rows > _MAX_ROWS:
        longest = max(lists, key=lambda name: len(lists[name]))
        raise InputError(f"at most {_MAX_ROWS} rows are computed here, not {rows:,}", parameter=longest)


def _ask(name: str, values: Values, pasted: ModelProfile | None) -> Answer:
    return asked_question(question(name), values.read, pasted).answer()


def _fit(values: Values, pasted: ModelProfile | None) -> Answer:
    if not {"gpu", "kv-memory", "device"} & set(values.read):
        raise InputError("choose an accelerator", parameter="gpu")
    return _ask("fit", values, pasted)


def _simulate(
    values: Values,
    pasted: ModelProfile | None,
    so_far: Callable[[RunSoFar], None] | None = None,
    within_s: float | None = None,
) -> Answer:
    asked: Any = asked_question(question("simulate"), values.read, pasted)
    if values.get("arrival") == "trace":
        what = "traces are files, which a page cannot name"
        raise InputError(what, hint="kvcalc simulate reads them", parameter="arrival")
    if asked.gpu is None:
        raise InputError("choose an accelerator", parameter="gpu")
    if asked.model is None:
        raise InputError("choose a model", parameter="model")
    asked.within_s, asked.so_far = within_s, so_far
    answer: Answer = asked.answer()
    return answer


def _plan(values: Values, pasted: ModelProfile | None) -> Answer:
    if "=" not in values.read.get("price", "="):
        raise InputError("price is read as h100-sxm=2.5,h200=3.2 here", parameter="price")
    return _ask("plan", values, pasted)


_LIMITED = {"fit": _fit, "plan": _plan, "simulate": _simulate}


def _declared(name: str, *, views: tuple[str, ...] = ("",), slow: bool = False, live: bool = False) -> Question:
    """Return a declared question as a page asks it, with every parameter that needs no file."""
    ask = _LIMITED.get(name) or partial(_ask, name)
    return Question(command=name, fields=tuple(page_params(question(name))), ask=ask, views=views, slow=slow, live=live)


QUESTIONS: dict[str, Question] = {
    "size": _declared("size", views=()),
    "fit": _declared("fit"),
    "decode": _declared("decode", views=("", "memory")),
    "prefill": _declared("prefill"),
    "roofline": _declared("roofline", views=("", "intensity")),
    "speculate": _declared("speculate"),
    "layers": _declared("layers"),
    "levers": _declared("levers"),
    "traffic": _declared("traffic"),
    "plan": _declared("plan", slow=True),
    "simulate": _declared("simulate", slow=True, live=True),
    "demo/kv-cache": _declared("demo kv-cache"),
    "demo/speculate": _declared("demo speculate"),
    "demo/paging": _declared("demo paging", slow=True),
    "demo/batching": _declared("demo batching"),
    "demo/drift": _declared("demo drift", slow=True),
}
