"""Every error a user can cause, as one tree.

KvcalcError                      what, where, hint
├── InputError                   an option or argument that cannot be used
├── UnknownNameError             a model, accelerator, format or field that is not known
├── ProfileError                 a profile or checkpoint file that cannot be read
└── UnsupportedError             an architecture or scheme that is refused, never approximated
"""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False  # every command loads this; the library that has it takes longer than `--help`
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "InputError",
    "KvcalcError",
    "ProfileError",
    "UnknownNameError",
    "UnsupportedError",
    "about",
    "did_you_mean",
]


class KvcalcError(Exception):
    """A mistake that the user can mend.

    Args:
        what: one sentence that says what is wrong.
        where: the place, as ``file:line``, a field's path or an option.
        hint: what to do about it.
        parameter: the parameter that it is about, as the command line spells it without dashes; empty if unknown.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", parameter: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.parameter = parameter

    @property
    def message(self) -> str:
        """The mistake and its place, without the hint."""
        return f"{self.where}: {self.what}" if self.where else self.what

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class InputError(KvcalcError):
    """An option or argument that cannot be used as given."""


class UnknownNameError(KvcalcError):
    """A name that is not in the catalogue or the vocabulary it was looked up in."""


class ProfileError(KvcalcError):
    """A profile or checkpoint file that cannot be read as what it claims to be."""


class UnsupportedError(KvcalcError):
    """An architecture or scheme that kvcalc does not know and therefore refuses by name."""


@contextmanager
def about(parameter: str) -> Iterator[None]:
    """Name the parameter that errors raised inside are about, where they name none themselves."""
    try:
        yield
    except KvcalcError as error:
        error.parameter = error.parameter or parameter
        raise


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint naming the closest known names, or an empty string.

    >>> did_you_mean("lama2-70b", ["llama2-70b", "qwen3-8b"])
    'did you mean llama2-70b?'
    """
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), sorted(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""
