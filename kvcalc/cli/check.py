"""``kvcalc check``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from kvcalc.cli.options import Batches, Contexts, Json, Output, takes_deployment
from kvcalc.core.errors import InputError

Files = Annotated[list[Path] | None, Argument(help="Files of checks; kvcalc.checks.yaml where none is named.")]
Init = Annotated[bool, Option("--init", help="Write a kvcalc.checks.yaml to start from, here.")]
Schema = Annotated[bool, Option("--schema", help="Print the JSON Schema of such files, for editors.")]
Against = Annotated[Path | None, Option("--against", help="The --json of an earlier run: what got worse fails.")]
Tolerance = Annotated[str, Option("--tolerance", help="With --against: how much worse a figure may be, as 1%.")]
Junit = Annotated[Path | None, Option("--junit", metavar="FILE", help="Write JUnit XML as well.")]
Github = Annotated[bool, Option("--github", help="Annotate for GitHub, and add to $GITHUB_STEP_SUMMARY.")]
Measured = Annotated[
    str | None,
    Option(
        "--measured", help="A measured speed: 3000tok/s (all sequences), 50tok/s/user, or the time of a pass: 12ms."
    ),
]
Model = Annotated[str | None, Option("--model", "-m", help="With --measured: of which model.")]
Gpu = Annotated[str | None, Option("--gpu", help="With --measured: on which accelerator.")]
Phase = Annotated[str, Option("--phase", help="With --measured: decode or prefill.")]
Prompt = Annotated[str | None, Option("--prompt", help="With --measured, of a prefill: tokens of each prompt.")]

_FILE = Path("kvcalc.checks.yaml")
_EXAMPLE = """\
# Run with `kvcalc check`. `kvcalc check --schema > kvcalc.checks.schema.json` lets editors complete this file.
# yaml-language-server: $schema=kvcalc.checks.schema.json
defaults:  # options of the command line, for every check that has them
  gpu: h100-sxm
checks:
- name: chat on one GPU
  model: llama3.1-8b
  context: 8192
  batch: 32
  expect:
    fits: true
    kv_bytes_per_token: 131072
    kv_headroom: {min: 10%}
    decode.tokens_per_s_per_sequence: {min: 30}
- name: first token of a long prompt
  model: llama3.1-8b
  prompt: 8192
  expect:
    prefill.ideal_s: {max: 150ms}
- name: every GPU holds one long prompt
  model: llama3.1-8b
  matrix: {gpu: [h100-sxm, l40s, a100-80gb], kv_dtype: [bf16, fp8]}
  context: 65536
  max_model_len: 65536
  expect: {fits: true}
  record: [decode.tokens_per_s]  # written down for --against, not asserted
"""


@takes_deployment
def command(
    files: Files = None,
    init: Init = False,
    schema: Schema = False,
    against: Against = None,
    tolerance: Tolerance = "0",
    junit: Junit = None,
    github: Github = False,
    measured: Measured = None,
    model: Model = None,
    gpu: Gpu = None,
    phase: Phase = "decode",
    batch: Batches = "1",
    context: Contexts = None,
    prompt: Prompt = None,
    json: Json = False,
    output: Output = "table",
    *,
    deployment_options: dict[str, Any],
) -> None:
    """Assertions for CI from a YAML file, or whether a measured speed is possible at all.

    Exit code 1 where an assertion does not hold or the speed beats its bound, 2 where it cannot be computed.

    Example: kvcalc check docs/examples/kvcalc.checks.yaml
    """
    from kvcalc import api
    from kvcalc.cli.plausible import check_speed
    from kvcalc.cli.runner import Runner, option_help, report_names
    from kvcalc.cli.shared import command_output, emit, share
    from kvcalc.render.ci import github_annotations, junit_xml, markdown_summary
    from kvcalc.render.files import check_writable, write_whole

    shown = command_output(output, json=json)
    if measured is not None:
        _refuse_of_files(files, against, tolerance)
        check_speed(
            measured,
            model=model,
            gpu=gpu,
            phase=phase,
            batch=batch,
            context=context,
            prompt=prompt,
            shown=shown,
            deployment_options=deployment_options,
        )
        return
    if model is not None or gpu is not None:
        raise InputError("--model and --gpu belong to --measured", hint="in a file of checks they are keys of a check")
    if init:
        _write_example()
        return
    if schema:
        import json as json_module

        sys.stdout.write(json_module.dumps(api.check_schema(option_help(), report_names()), indent=1) + "\n")
        return
    if not files and not _FILE.exists():
        raise InputError(
            f"no file of checks is named and there is no {_FILE} here", hint="kvcalc check --init writes one"
        )
    check_writable((junit,))
    report = api.check_files(
        files or [_FILE], Runner(), report_names(), against=against, tolerance=share(tolerance, "tolerance")
    )
    if junit is not None:
        write_whole(junit, junit_xml(report).encode())
    if github:
        sys.stderr.write(github_annotations(report))
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown_summary(report))
    emit(report, shown)
    if not report.passed:
        raise Exit(1)


def _refuse_of_files(files: list[Path] | None, against: Path | None, tolerance: str) -> None:
    if files or against is not None or tolerance != "0":
        raise InputError("files of checks, --against and --tolerance are of no use with --measured")


def _write_example() -> None:
    from kvcalc.render.files import write_whole

    if _FILE.exists():
        raise InputError(f"{_FILE} is there already", hint="remove it, or edit it")
    write_whole(_FILE, _EXAMPLE.encode())
    sys.stderr.write(f"wrote {_FILE}\n")
