"""Seed random faults into all of kvcalc and say which ones no test notices.

    python -m tests.mutation.notice --map MAP               # once: which test runs which line, and how long it takes
    python -m tests.mutation.notice --map MAP --seed 1 --count 200

The tests are collected once. For each fault a child process gets the changed code and runs the tests that reach its
line, the quickest first, until one fails. A fault at module level needs a fresh import, in a process of its own.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest
import yaml

from tests.mutation.random_faults import RandomFault, faults_of

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
TESTS = ("kvcalc", "tests/unit", "tests/cli", "tests/property", "tests/conformance", "tests/contracts",
         "tests/explore/test_endpoints.py", "tests/explore/test_security.py", "tests/explore/test_turns.py")  # fmt: skip
OPTIONS = (
    "-q",
    "-p",
    "no:cacheprovider",
    "--doctest-modules",
    "--ignore=kvcalc/__main__.py",
    "--ignore=kvcalc/measure",
)
# What runs only with PyTorch, an engine, a browser or in a process of its own, and is tested there.
LEFT_OUT = ("kvcalc/measure/", "kvcalc/__main__.py", "kvcalc/workers.py", "kvcalc/child.py", "kvcalc/explore/connections.py",
            "kvcalc/questions/bench.py", "kvcalc/questions/crosscheck.py", "kvcalc/cli/measuring.py")  # fmt: skip
NUMBERS = ("constant", "factor")
# How much longer a test may take that is likely to notice.
_NEAR = 20
# CPU seconds after which a fault has made something endless, many times those of the tests for it; a process that waits
# for ever is left after so many times as long.
_ENDLESS_S, _WAITS = 240, 15
# Numbers of which none is right, by file and the line they stand on: looks (widths, shades, how many ticks); how much of
# a file is read and how many may wait, where any large number does and a test sees that there is an end; where a fit starts.
CHOSEN = (
    ("kvcalc/render/", r""),
    ("kvcalc/importers/", r"_?(MOST|MAX|LONGEST|LARGEST)_"),
    ("kvcalc/explore/", r"_?(MOST|MAX|LIMIT|QUICK|GRACE|BODY|OWN_LIMIT)_"),
    ("kvcalc/evidence/families.py", r""),
)


class Mapper:
    """A plugin of pytest that notes which test runs which line."""

    def __init__(self, path: Path) -> None:
        """Write the map to a path."""
        self.path, self.seconds, self.failed = path, {}, set()
        self.coverage = coverage.Coverage(data_file=None, source=["kvcalc"], config_file=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Run one test in a context of its own."""
        self.coverage.switch_context(item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.perf_counter() - start, 3)
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails without any fault: it would fail with each."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the map, or renew the part of these tests in it: a file's lines, each with the numbers of its tests."""
        self.coverage.stop()
        known = {"tests": {}, "lines": {}, "sources": {}}
        if self.path.exists():
            known = json.loads(self.path.read_text(encoding="utf-8"))
        known["tests"] |= self.seconds
        numbers = {name: number for number, name in enumerate(known["tests"]) if name not in self.failed}
        renewed = {number for number, name in enumerate(known["tests"]) if name in self.seconds}
        for lines in known["lines"].values():
            for line, tests in lines.items():
                lines[line] = [number for number in tests if number not in renewed]
        data = self.coverage.get_data()
        for path in data.measured_files():
            file = str(Path(path).relative_to(ROOT))
            lines = known["lines"].setdefault(file, {})
            for line, names in data.contexts_by_lineno(path).items():
                lines.setdefault(str(line), []).extend(numbers[name] for name in names if name in numbers)
            known["sources"].setdefault(file, digest(file))
        self.path.write_text(json.dumps(known), encoding="utf-8")


class Judge:
    """A plugin of pytest that, instead of running all tests, seeds faults and runs the tests that reach them."""

    def __init__(self, chosen: list[tuple[str, RandomFault]], known: dict, limit_s: float) -> None:
        """Take faults with their files, the map of tests, and the seconds of tests to spend on one fault."""
        self.chosen, self.known, self.limit_s = chosen, known, limit_s
        self.verdicts: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge every fault."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        items = {item.nodeid: item for item in session.items}
        for number, (file, fault) in enumerate(self.chosen):
            start = time.perf_counter()
            names = [name for name in tests_for(file, fault, self.known, self.limit_s) if name in items]
            code = function_code(file, fault)
            function = code and live_function(file, code)
            if not names:
                verdict = "reached by no test"
            elif function:
                verdict = in_child(lambda f=function, c=code, n=names: run_items(session, [items[x] for x in n], f, c))
            else:
                verdict = in_process(file, fault, names)
            self.verdicts.append(verdict)
            print(f"{number} {verdict} {time.perf_counter() - start:.1f} s {file}:{fault}", file=sys.stderr, flush=True)
        return True


def digest(file: str) -> str:
    """What tells whether a file's lines are those of the map."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()


def tests_for(file: str, fault: RandomFault, known: dict, limit_s: float) -> list[str]:
    """The tests that run a fault's line, the quickest first; those of a file that imports its module count as quicker.

    Where an import runs the line, or the file is another than the map's, those of the whole file: they may only read a constant.
    """
    names, lines = list(known["tests"]), known["lines"].get(file, {})
    numbers = set(lines.get(str(fault.line), ())) if known["sources"].get(file) == digest(file) else set()
    importing = {number for number, name in enumerate(names) if imports(name.split("::")[0], module_name(file))}
    if not numbers:
        numbers = importing.union(*lines.values())
    chosen, spent = [], 0.0
    for number in sorted(numbers, key=lambda each: known["tests"][names[each]] / (_NEAR if each in importing else 1)):
        spent += known["tests"][names[number]]
        if spent > limit_s and chosen:
            break
        chosen.append(names[number])
    return chosen


def module_name(file: str) -> str:
    """The dotted name of a file's module."""
    parts = Path(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(test: str, module: str) -> bool:
    """Whether a file of tests has a module's name in it."""
    path = ROOT / test
    return path.exists() and re.search(rf"\b{re.escape(module)}\b", path.read_text(encoding="utf-8")) is not None


def function_code(file: str, fault: RandomFault) -> CodeType | None:
    """The changed code of the function a fault stands in; none at module or class level or in a default value."""
    path = str(ROOT / file)
    source = (ROOT / file).read_text(encoding="utf-8")
    changed = compile(fault.applied(source), path, "exec", dont_inherit=True)
    plain = compile(ast.parse(source), path, "exec", dont_inherit=True)
    return _changed_function(plain, changed)


def _changed_function(plain: CodeType, changed: CodeType) -> CodeType | None:
    pairs = [
        (one, other)
        for one, other in zip(plain.co_consts, changed.co_consts, strict=False)
        if isinstance(one, CodeType) and isinstance(other, CodeType) and one != other
    ]
    if len(pairs) != 1 or (plain.co_code, plain.co_names) != (changed.co_code, changed.co_names):
        return None
    others = [(a, b) for a, b in zip(plain.co_consts, changed.co_consts, strict=False) if not isinstance(a, CodeType)]
    if len(plain.co_consts) != len(changed.co_consts) or any(a != b or type(a) is not type(b) for a, b in others):
        return None
    one, other = pairs[0]
    if one.co_flags & 0x02 and one.co_name != "<module>":  # CO_NEWLOCALS: a function, not a class
        return other
    return _changed_function(one, other)


def live_function(file: str, code: CodeType) -> FunctionType | None:
    """The one function in memory that was made from this code before it was changed."""
    path = str(ROOT / file)
    live = [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType
        and each.__code__.co_filename == path
        and (each.__code__.co_qualname, each.__code__.co_firstlineno) == (code.co_qualname, code.co_firstlineno)
        and each.__code__.co_freevars == code.co_freevars
    ]
    return live[0] if len(live) == 1 else None


def run_items(session: pytest.Session, items: list[pytest.Item], function: FunctionType, code: CodeType) -> bool:
    """Whether a test fails once a function has the changed code."""
    function.__code__ = code
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return True
    return False


def in_child(noticed: object, endless_s: int = _ENDLESS_S) -> str:
    """The verdict of a function that runs in a fork of this process."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.setpgid(0, 0)
        limit_cpu(endless_s)
        try:
            os._exit(1 if noticed() else 0)
        except BaseException:  # noqa: BLE001 - whatever ends a run is noticed
            os._exit(3)
    end = time.monotonic() + _WAITS * endless_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return verdict_of(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "noticed (endless)"


def limit_cpu(seconds: int) -> None:
    """End this process when it has computed for so long: a busy machine takes no survivor for endless, as a clock would."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def verdict_of(code: int) -> str:
    """What the exit code of a process says that ran the tests of a fault."""
    return {0: "SURVIVED", -signal.SIGXCPU: "noticed (endless)", -signal.SIGKILL: "noticed (endless)"}.get(
        code, "noticed"
    )


def in_process(file: str, fault: RandomFault, names: list[str], endless_s: int = _ENDLESS_S) -> str:
    """The verdict of a fresh process that imports the changed module."""
    text = ast.unparse(fault.applied((ROOT / file).read_text(encoding="utf-8")))
    command = [sys.executable, "-m", "tests.mutation.notice", "--fresh", file]
    try:
        done = subprocess.run(command, cwd=ROOT, input=json.dumps([text, names]), text=True, capture_output=True,
                              check=False, timeout=_WAITS * endless_s, preexec_fn=lambda: limit_cpu(endless_s))  # fmt: skip
    except subprocess.TimeoutExpired:
        return "noticed (endless)"
    return verdict_of(done.returncode)


class Importer:
    """An import hook that hands out a changed source for one module."""

    def __init__(self, file: str, text: str) -> None:
        """Change the module of a file."""
        self.path, self.text = ROOT / file, text
        self.name = module_name(file)

    def find_spec(self, name: str, *_: object) -> object:
        """The module, if it is the changed one."""
        from importlib.util import spec_from_file_location

        if name != self.name:
            return None
        package = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return spec_from_file_location(name, self.path, loader=self, submodule_search_locations=package)

    def create_module(self, spec: object) -> None:
        """Make an ordinary module."""

    def exec_module(self, module: object) -> None:
        """Run the changed source."""
        exec(compile(self.text, str(self.path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def run_fresh(file: str) -> int:
    """Run the tests named on standard input with the changed module given there; pytest's exit code."""
    text, names = json.load(sys.stdin)
    sys.meta_path.insert(0, Importer(file, text))
    wanted = {name: place for place, name in enumerate(names)}

    class Chosen:
        @staticmethod
        def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
            items[:] = sorted((each for each in items if each.nodeid in wanted), key=lambda each: wanted[each.nodeid])

    files = sorted({name.split("::")[0] for name in names})
    return pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen()])


def sample(seed: int, count: int, under: str) -> list[tuple[str, RandomFault]]:
    """Faults drawn from all of kvcalc, each place of each file as likely as any other."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "kvcalc").rglob("*.py"))
    files = [file for file in files if file.startswith(under) and not file.startswith(LEFT_OUT)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [(file, each) for file in files for each in faults_in((ROOT / file).read_text(encoding="utf-8"), file)]
    print(f"{len(every)} possible faults in {len(files)} files", file=sys.stderr)
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311


def faults_in(source: str, file: str) -> list[RandomFault]:
    """The faults of a file, without those in numbers that are chosen."""
    lines = source.splitlines()
    chosen = [pattern for under, pattern in CHOSEN if file.startswith(under)]
    return [
        each
        for each in faults_of(source)
        if each.kind not in NUMBERS or not any(re.match(pattern, lines[each.line - 1]) for pattern in chosen)
    ]


def equivalent(file: str, fault: RandomFault, listed: list[dict[str, str]]) -> bool:
    """Whether a fault is listed as one that changes no result."""
    key = {"file": file, "owner": fault.owner, "before": fault.before, "after": fault.after}
    return any(key.items() <= each.items() for each in listed)


def main() -> int:
    """Make the map, or judge a sample of faults; 1 if too many survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", type=Path, default=ROOT / ".mutation_map.json")
    parser.add_argument("tests", nargs="*", help="without --seed: the tests whose part of the map is renewed")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--under", default="kvcalc/", help="the files to change")
    parser.add_argument("--limit", type=float, default=30, help="seconds of tests for one fault")
    parser.add_argument("--fresh", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    if arguments.fresh:
        return run_fresh(arguments.fresh)
    if arguments.seed is None:
        return int(pytest.main([*OPTIONS, *(arguments.tests or TESTS)], plugins=[Mapper(arguments.map)]) > 1)
    known = json.loads(arguments.map.read_text(encoding="utf-8"))
    judge = Judge(sample(arguments.seed, arguments.count, arguments.under), known, arguments.limit)
    pytest.main([*OPTIONS, *TESTS], plugins=[judge])
    listed = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else []
    left = [
        (verdict, file, fault)
        for verdict, (file, fault) in zip(judge.verdicts, judge.chosen, strict=True)
        if not verdict.startswith("noticed")
    ]
    missed = [each for each in left if not equivalent(each[1], each[2], listed)]
    for verdict, file, fault in missed:
        print(f"{verdict}: {file}:{fault}")
    noticed = len(judge.chosen) - len(left)
    print(f"{noticed} of {len(judge.chosen)} faults noticed, {len(left) - len(missed)} known to change nothing")
    return int(len(missed) > 0.05 * len(judge.chosen))


if __name__ == "__main__":
    raise SystemExit(main())
