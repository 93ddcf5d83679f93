"""Assertions: ``kvcalc check``. Files of checks are held against what they expect and against an earlier run."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, ProfileError, did_you_mean
from kvcalc.core.readers import count, flag, share, texts
from kvcalc.core.reports.checks import CheckResult, ChecksReport
from kvcalc.core.reports.fit import FitReport
from kvcalc.core.reports.size import SizeReport
from kvcalc.core.reports.speed import DecodeRow, PrefillRow
from kvcalc.profiles.origins import noting_origins
from kvcalc.questions import QUESTIONS, question
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import BATCHES, CONTEXTS, Run
from kvcalc.questions.regressions import changes_since, figure_text
from kvcalc.questions.shown import report_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvcalc.core.reports.check import CheckReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.profiles.checks import Assertion, Check

__all__ = ["ASSERTED", "CHECKS_FILE", "Checks", "check_files", "check_measured", "check_schema", "report_of_field"]

CHECKS_FILE = Path("kvcalc.checks.yaml")
# Questions whose figures can be asserted; the others print something else than figures of a setup.
_WITHOUT_FIGURES = ("compare", "check", "sweep", "reconcile", "validate", "demo", "calibrate")
ASSERTED = tuple(name for name in QUESTIONS if name.partition(" ")[0] not in _WITHOUT_FIGURES)
# Whose fields need no report before them: the first that has one counts.
_OWNERS = {"fit": FitReport, "size": SizeReport, "decode": DecodeRow, "prefill": PrefillRow}
_SHORT = {
    "kv_bytes_per_token": "size.kv.bytes_per_token",
    "kv_bytes_per_sequence": "size.kv.bytes_per_sequence",
    "kv_total_bytes": "size.kv.total_bytes",
    "weight_bytes": "size.weights.total_bytes",
    "parameters": "size.weights.parameters",
    "ttft_s": "prefill.ideal_s",
    "speedup": "speculate.speedup",
}


def report_of_field(name: str, reports: Iterable[str]) -> tuple[str, str]:
    """Return the report that a field belongs to, and its name there.

    Raises:
        InputError: a name that is in no report.

    >>> report_of_field("decode.rows.0.flop", ["decode"]), report_of_field("kv_bytes_per_token", ["size"])
    (('decode', 'rows.0.flop'), ('size', 'kv.bytes_per_token'))
    """
    known = list(reports)
    full = _SHORT.get(name, name)
    report, _, rest = full.partition(".")
    if report in known and rest:
        return report, rest
    for owner, kind in _OWNERS.items():
        if report in {field.name for field in fields(kind)}:
            return owner, full
    hint = f"name the report first ({', '.join(known)}), as decode.tokens_per_s, or use {', '.join(_SHORT)}"
    raise InputError(f"{name!r} is no field of a report", hint=hint)


class Checks(Run):
    """Assertions for CI from a YAML file, or whether a measured speed is possible.

    Exit code 1 where an assertion does not hold or the speed beats its bound, 2 where it cannot be computed.

    Example: kvcalc check docs/examples/kvcalc.checks.yaml
    """

    files: tuple[str, ...] = param(
        "files",
        help=f"Check files (default: {CHECKS_FILE}).",
        read=texts,
        repeats=True,
        metavar="files...",
        is_argument=True,
    )
    init: bool = param("--init", help=f"Write an example {CHECKS_FILE} here.", read=flag, default=False)
    schema: bool = param(
        "--schema", help="Print the JSON Schema of check files, for editors.", read=flag, default=False
    )
    against: str | None = param("--against", help="JSON of an earlier run; a figure that got worse fails.")
    tolerance: float = param(
        "--tolerance", help="With --against: how much worse a figure may be: 1%.", read=share, default="0"
    )
    junit: str | None = param("--junit", heading="Output", help="Also write JUnit XML.", metavar="FILE")
    github: bool = param(
        "--github",
        heading="Output",
        help="Annotate for GitHub, and add to $GITHUB_STEP_SUMMARY.",
        read=flag,
        default=False,
    )
    measured: str | None = param(
        "--measured",
        heading="Measured speed",
        help="Measured speed: 3000tok/s (all sequences), 50tok/s/user, or the time of a pass: 12ms.",
    )
    model: str | None = param("--model", "-m", help="With --measured: the model.")
    gpu: str | None = param("--gpu", help="With --measured: the accelerator.")
    phase: str = param(
        "--phase", heading="Measured speed", help="With --measured: decode or prefill.", default="decode"
    )
    batch: tuple[int, ...] = BATCHES
    context: tuple[int, ...] | None = CONTEXTS
    prompt: int | None = param("--prompt", help="With --measured --phase prefill: prompt length (ISL).", read=count)

    def answer(self) -> Answer:
        """Return the outcome of the checks, or whether the measured speed is possible."""
        if self.measured is not None:
            return self._plausible(self.measured)
        if self.model is not None or self.gpu is not None:
            hint = "in a file of checks they are keys of a check"
            raise InputError("--model and --gpu belong to --measured", hint=hint)
        if not self.files and not CHECKS_FILE.exists():
            what = f"no file of checks is named and there is no {CHECKS_FILE} here"
            raise InputError(what, hint="kvcalc check --init writes one")
        report = check_files(self.files or (CHECKS_FILE,), against=self.against, tolerance=self.tolerance)
        return Answer(report, passed=report.passed)

    def _plausible(self, measured: str) -> Answer:
        if self.files or self.against is not None or self.tolerance:
            raise InputError("check files, --against and --tolerance cannot be combined with --measured")
        for name in ("model", "gpu"):
            if getattr(self, name) is None:
                hint = "say what was measured: --model llama3.1-8b --gpu h100-sxm"
                raise InputError(f"--measured needs --{name}", hint=hint, parameter=name)
        is_decode = self.phase == "decode"
        other, hint = (self.prompt, "--context") if is_decode else (self.context, "--prompt")
        if other is not None:
            raise InputError(f"a {self.phase} has no {'prompt' if is_decode else 'context'} here", hint=f"give {hint}")
        context = None if self.context is None else count(self.context, "context")
        deployment = self.deployment()
        report = check_measured(
            deployment,
            measured,
            phase=self.phase,
            batch=count(self.batch, "batch"),
            tokens=context if is_decode else self.prompt,
        )
        return Answer(report, passed=report.passed)


def check_files(
    files: Sequence[str | Path], *, against: str | Path | None = None, tolerance: float = 0.0
) -> ChecksReport:
    """Return the outcome of the checks of some files.

    Args:
        files: files of checks.
        against: an earlier report of these checks, as JSON.
        tolerance: how much worse a figure may be than it was there, as a share.

    Raises:
        KvcalcError: a file that cannot be read, or a check that cannot be computed, with its line.
    """
    from kvcalc.profiles.checks import read_checks

    asking = _Asking()
    results = [result for file in files for check in read_checks(Path(file)) for result in _results(check, asking)]
    changes, notes = ((), ()) if against is None else changes_since(results, Path(against), tolerance)
    failures = sum(not result.passed for result in results)
    regressions = sum(change.worse for change in changes)
    return ChecksReport(
        passed=not failures and not regressions,
        failures=failures,
        regressions=regressions,
        checks=tuple(results),
        changes=changes,
        notes=notes,
    )


def _results(check: Check, asking: _Asking) -> Iterator[CheckResult]:
    _refuse_unread(check)
    for assertion in check.assertions:
        try:
            report, field = report_of_field(assertion.field, ASSERTED)
            answer = asking.answer(report, check)
            _refuse_shadows(answer["source"], check)
            yield _result(check, assertion, answer, report, field)
        except KvcalcError as error:
            what = f"{error.where}: {error.what}" if error.where else error.what
            raise ProfileError(f"{check.name}: {what}", where=assertion.where, hint=error.hint) from None


def _refuse_unread(check: Check) -> None:
    """Refuse a key that none of the questions asked for a check's figures has: it would assert nothing.

    Raises:
        ProfileError: there is one.
    """
    try:
        reports = dict.fromkeys(report_of_field(each.field, ASSERTED)[0] for each in check.assertions)
    except InputError:
        return  # said with the line of the assertion
    keys = {key for report in reports for key in question(report).spelled()}
    keys |= {"context"} if "prompt" in keys else set()
    for key in check.settings:
        owners = [name for name in ASSERTED if key in question(name).spelled()]
        if key not in keys and owners:
            what = f"{key!r} is an option of {', '.join(owners)}, and asks nothing of {', '.join(reports)}"
            raise ProfileError(
                f"{check.name}: {what}", where=check.where, hint="leave it out, or assert a figure that it is of"
            )


class _Asking:
    """Questions asked with the keys of checks, each once."""

    def __init__(self) -> None:
        self._answers: dict[str, Mapping[str, Any]] = {}

    def answer(self, report: str, check: Check) -> Mapping[str, Any]:
        """Return a report as plain data, as ``--json`` prints it.

        Raises:
            KvcalcError: a key that is no parameter, a value that it does not take, or what cannot be computed.
        """
        given = _parameters(report, check)
        key = repr((report, sorted(given.items())))
        if key not in self._answers:
            with noting_origins():
                self._answers[key] = report_data(question(report)(**given).answer().report)
        return self._answers[key]


def _parameters(report: str, check: Check) -> dict[str, Any]:
    """Return the parameters that a check sets of a question; its defaults count where the question has them."""
    keys, kind = question(report).spelled(), question(report)
    given: dict[str, Any] = {}
    for key, value in (*check.defaults.items(), *check.settings.items()):
        if key in keys:
            given[keys[key]] = _scalar(key, value, repeats=kind.params[keys[key]].repeats)
        elif key not in asserted_options():
            hint = did_you_mean(key, asserted_options()) or "options are those of the command line, with _ for -"
            raise InputError(f"there is no option {key!r}", hint=hint)
    if "prompt" in kind.params and "prompt" not in given and "context" not in kind.params:
        # what is attended after the prompt is the prompt, unless it is said
        context = check.settings.get("context", check.defaults.get("context"))
        given |= {} if context is None else {"prompt": str(context)}
    for name, each in kind.params.items():
        if each.is_required and given.get(name) is None:
            raise InputError(f"{report} needs {each.name}", hint=f"kvcalc {report} --help shows the options")
    return {name: value for name, value in given.items() if value is not None}


def _scalar(name: str, value: Any, *, repeats: bool) -> Any:
    """Return a value of a YAML file as a command line has it: text is text, whatever it looks like."""
    if repeats and isinstance(value, list):
        return [str(each) for each in value]
    if isinstance(value, list | dict):
        raise InputError(f"{name} takes one value, not {value}", hint="lists go below `matrix:`")
    return value if value is None or isinstance(value, bool) else str(value)


@cache
def asserted_options() -> dict[str, str]:
    """Return the keys that checks may set, with what they are."""
    options: dict[str, str] = {}
    for report in ASSERTED:
        kind = question(report)
        for key, name in kind.spelled().items():
            options.setdefault(key, kind.params[name].help)
    return dict(sorted(options.items()))


def _refuse_shadows(source: Mapping[str, Any], check: Check) -> None:
    """Refuse figures of a profile that stands in for one of kvcalc's own, unless the file of checks allows its name."""
    for name in source["shadowed"]:
        if name.strip().lower() not in check.may_shadow:
            path = next(names[name] for kind, names in source.items() if kind != "shadowed" and name in names)
            raise InputError(
                f"{name} was read from {path}, not from kvcalc's own profile of that name",
                hint=f"give the file's path, or write allow_shadowing: [{name}] at the top of the file of checks",
            )


def _result(check: Check, assertion: Assertion, report: Mapping[str, Any], name: str, field: str) -> CheckResult:
    from kvcalc.plan.expectations import field_of, outcome

    actual = field_of(report, field)
    full = f"{name}.{field}"
    if isinstance(actual, dict | list):
        raise InputError(f"{full} is not one figure", hint=f"name one below it: {full}.{next(iter(actual), 0)}"
                         if isinstance(actual, dict) else f"name one of its entries: {full}.0")  # fmt: skip
    passed, words = (True, "") if assertion.recorded else outcome(actual, assertion.expected, full)
    shown = figure_text(actual)
    message = f"{full} is {shown}" if passed else f"{full} is {shown}, expected {words}"
    return CheckResult(
        name=f"{check.name}: {assertion.field}",
        field=full,
        passed=passed,
        expected=assertion.expected,
        actual=actual,
        where=assertion.where,
        message=message,
    )


def check_schema() -> dict[str, Any]:
    """Return the JSON Schema of files of checks."""
    from kvcalc.plan.expectations import OPERATORS
    from kvcalc.profiles.checks import checks_schema

    known = {name: f"Short for {full}." for name, full in _SHORT.items()}
    for owner, kind in _OWNERS.items():
        for field in fields(kind):
            if field.type in ("int", "float", "bool", "str", "float | None", "int | None"):
                known.setdefault(f"{owner}.{field.name}", f"A field of kvcalc {owner} --json.")
    return checks_schema(asserted_options(), known, OPERATORS)


def check_measured(
    deployment: Deployment, measured: str, *, phase: str = "decode", batch: int = 1, tokens: int | None = None
) -> CheckReport:
    """Return whether a measured speed is possible at all, and how near it comes to the bound.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        measured: tokens/s over all sequences (``3000tok/s``; ``50tok/s/user`` is of each), or a time (``12ms``): of a
            decode step, or to the first token.
        phase: ``decode`` or ``prefill``.
        batch: sequences at once.
        tokens: context of the decode step, or length of the prompt.

    Raises:
        InputError: a figure that cannot be read, another phase, or no accelerator.
    """
    from kvcalc.evidence.plausible import plausibility

    return plausibility(deployment, measured=measured, phase=phase, batch=batch, tokens=tokens)
