"""The questions of a page: those that are declared, within a page's limits, its simulations and demonstrations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc import api
from kvcalc.core.errors import InputError, UnknownNameError, about
from kvcalc.core.readers import count, count_from_zero, memory, number
from kvcalc.explore.fields import Values, of_field
from kvcalc.questions import QUESTIONS as DECLARED
from kvcalc.questions import question
from kvcalc.questions.declared import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.readers import Reader
    from kvcalc.questions.declared import Question as Declared

    Asked = TypeVar("Asked", bound=Declared)

__all__ = ["QUESTIONS", "Question", "asked_question", "looked_up", "page_params"]

_MAX_COUNTS = 64
_MAX_ROWS = 64
_MAX_REQUESTS = 5_000
_MAX_SIMULATED_S = 9.0
_MAX_REPLICAS = 16
_MAX_MEMORY_TOKENS = 1_000_000
_DEFAULT_CONFIG = "config.json"
# Each setting of speculation takes a search.
_MAX_SEARCHED = 8
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
        readers: how fields are read whose question does not read them itself.
    """

    command: str
    fields: tuple[str, ...]
    ask: Callable[[Values, ModelProfile | None], Answer]
    views: tuple[str, ...] = ("",)
    slow: bool = False
    readers: Mapping[str, Reader] = field(default_factory=dict)

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
    for name, load in _LOOKED_UP.items():
        if name in given:
            with about(name):
                given[name] = looked_up(load, str(given[name]).strip())
    if pasted is not None:
        given["model"] = pasted
    for name, missing in (("model", "choose a model"), ("gpu", "choose an accelerator")):
        if name in kind.params and kind.params[name].is_required and name not in given:
            raise InputError(missing, parameter=name)
    asked = kind(**given)
    _check_lists(asked, most=_MAX_SEARCHED if kind.__name__ == "Speculate" else _MAX_COUNTS)
    return asked


def _check_lists(asked: Declared, *, most: int) -> None:
    """Refuse lists that take a page too long."""
    lists = {each.name: value for name, each in asked.params.items()
             if isinstance(value := getattr(asked, name), tuple) and value and isinstance(value[0], int)}  # fmt: skip
    for name, value in lists.items():
        if len(value) > most:
            what = f"{name} takes at most {most} numbers here, not {len(value):,}"
            raise InputError(what, hint="widen the step", parameter=name)
    rows = prod(map(len, lists.values()))
    if rows > _MAX_ROWS:
        longest = max(lists, key=lambda name: len(lists[name]))
        raise InputError(f"at most {_MAX_ROWS} rows are computed here, not {rows:,}", parameter=longest)


def _ask(name: str, values: Values, pasted: ModelProfile | None) -> Answer:
    return asked_question(question(name), values.read, pasted).answer()


def _fit(values: Values, pasted: ModelProfile | None) -> Answer:
    if "gpu" not in values.read and "kv-memory" not in values.read:
        raise InputError("choose an accelerator", parameter="gpu")
    return _ask("fit", values, pasted)


def _simulate(values: Values, pasted: ModelProfile | None) -> Answer:
    asked: Any = asked_question(question("simulate"), values.read, pasted)
    for name, most in (("requests", _MAX_REQUESTS), ("replicas", _MAX_REPLICAS)):
        if (getattr(asked, name) or 1) > most:
            raise InputError(f"{name} must be at most {most:,} here", hint="kvcalc simulate takes more", parameter=name)
    if values.get("arrival") == "trace":
        what = "traces are files, which a page cannot name"
        raise InputError(what, hint="kvcalc simulate reads them", parameter="arrival")
    if asked.gpu is None:
        raise InputError("choose an accelerator", parameter="gpu")
    if asked.model is None:
        raise InputError("choose a model", parameter="model")
    asked.within_s = _MAX_SIMULATED_S
    answer: Answer = asked.answer()
    return answer


def _bounded(values: Values, most: Mapping[str, int], spelled: Mapping[str, str]) -> dict[str, Any]:
    """Return what a demonstration is asked with, by the names that it gives them, none above what a page may ask."""
    for name, bound in most.items():
        with of_field(name):
            if values.get(name, 1) > bound:
                raise InputError(f"{name} must be at most {bound:,} here", hint="kvcalc demo takes more")
    return {to: values.get(name) for name, to in spelled.items() if name in values.read}


_TOKENS = {"prompt": "prompt_tokens", "output-tokens": "output_tokens", "seed": "seed"}
_MAX_TOKENS = {"prompt": 64, "output-tokens": 64}


def _demo_kv_cache(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    from kvcalc import DecoderShape

    shape = _bounded(values, {"layers": 8, "heads": 16, "kv-heads": 16}, {name: name.replace("-", "_") for name in
                                                                         ("layers", "heads", "kv-heads")})  # fmt: skip
    asked = _bounded(values, _MAX_TOKENS | {"batch": 8}, _TOKENS | {"batch": "batch"})
    return Answer(api.demo_kv_cache(shape=DecoderShape(**shape), **asked))


def _demo_speculate(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    return Answer(api.demo_speculate(**_bounded(values, _MAX_TOKENS | {"gamma": 16}, _TOKENS | {"gamma": "gamma"})))


def _demo_paging(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    spelled = {"memory-tokens": "memory_tokens", "block-size": "block_tokens", "max-model-len": "longest_tokens"}
    return Answer(api.demo_paging(**_bounded(values, {"memory-tokens": _MAX_MEMORY_TOKENS}, spelled)))


def _demo_drift(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    spelled = {"free-steps": "steps", "horizon": "horizon_steps", "consistency": "consistency",
               "trainings": "trainings", "seed": "seed"}  # fmt: skip
    return Answer(api.demo_drift(**_bounded(values, {"free-steps": 200, "horizon": 16, "trainings": 3}, spelled)))


_READERS: dict[str, Reader] = {
    **dict.fromkeys(("requests", "users", "replicas", "prompt", "output-tokens", "batch", "gamma", "layers", "heads",
                     "kv-heads", "memory-tokens", "block-size", "max-model-len", "free-steps", "horizon", "trainings"),
                    count),
    **dict.fromkeys(("rate", "consistency"), number),
    "seed": count_from_zero,
    "kv-memory": memory,
}  # fmt: skip


_LIMITED = {"fit": _fit, "simulate": _simulate}


def _declared(name: str, *, views: tuple[str, ...] = ("",), slow: bool = False) -> Question:
    """Return a declared question as a page asks it, with every parameter that needs no file."""
    ask = _LIMITED.get(name) or partial(_ask, name)
    return Question(command=name, fields=tuple(page_params(question(name))), ask=ask, views=views, slow=slow)


QUESTIONS: dict[str, Question] = {
    "size": _declared("size", views=()),
    "fit": _declared("fit"),
    "decode": _declared("decode", views=("", "memory")),
    "prefill": _declared("prefill"),
    "roofline": _declared("roofline", views=("", "intensity")),
    "speculate": _declared("speculate"),
    "levers": _declared("levers"),
    "traffic": _declared("traffic"),
    "simulate": _declared("simulate", slow=True),
    "demo/kv-cache": Question(
        command="demo kv-cache", fields=("prompt", "output-tokens", "batch", "layers", "heads", "kv-heads", "seed"),
        ask=_demo_kv_cache, readers=_READERS,
    ),
    "demo/speculate": Question(
        command="demo speculate", fields=("prompt", "output-tokens", "gamma", "seed"), ask=_demo_speculate,
        readers=_READERS,
    ),
    "demo/paging": Question(
        command="demo paging", fields=("memory-tokens", "block-size", "max-model-len"), ask=_demo_paging, slow=True,
        readers=_READERS,
    ),
    "demo/drift": Question(
        command="demo drift", fields=("free-steps", "horizon", "consistency", "trainings", "seed"), ask=_demo_drift,
        slow=True, readers=_READERS,
    ),
}  # fmt: skip
