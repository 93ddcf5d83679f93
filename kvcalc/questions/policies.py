"""Scheduling policies from files of a user's own: ``simulate --policy FILE.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.simulate.policies import SchedulingPolicy

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load_policy"]


def load_policy(path: str) -> type[SchedulingPolicy]:
    """Run a Python file, and return the one policy that it defines.

    Raises:
        InputError: a file that cannot be read or run, or with no policy or several.
    """
    module = _run(path)
    classes = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, SchedulingPolicy) and each.__module__ == module.__name__
    ]
    if len(classes) != 1:
        many = "no class" if not classes else f"{len(classes)} classes"
        raise InputError(
            f"{many} of kvcalc.SchedulingPolicy", where=path, hint="define one: class Mine(SchedulingPolicy)",
            parameter="policy",
        )  # fmt: skip
    return classes[0]


def _run(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise InputError("no such file", where=path, hint="fcfs, priority, or a Python file", parameter="policy")
    spec = importlib.util.spec_from_file_location("kvcalc_policy", path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", where=path, parameter="policy")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"{error.msg}", where=f"{path}:{error.lineno}", parameter="policy") from error
    except Exception as error:
        what = f"it cannot be run: {type(error).__name__}: {error}"
        raise InputError(what, where=path, parameter="policy") from error
    return module
