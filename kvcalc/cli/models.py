"""``kvcalc models``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from kvcalc.cli.profiles import Json, Output, Set, profiles_app

app = profiles_app("model", "List, show, import, lint and validate model profiles.")

Source = Annotated[str, Argument(help="config.json or its folder, .gguf, .safetensors, or a Hugging Face id.")]
Linted = Annotated[Path, Argument(help="A config.json, its folder, or a .safetensors beside it.")]
Target = Annotated[Path | None, Option("--output-file", "-o", help="Write here instead of to standard output.")]

Search = Annotated[str, Argument(help="Only models whose name has this text.")]
Quantised = Annotated[str, Argument(help="Catalogue name, Hugging Face id, profile, config.json or .gguf in 16 bits.")]
Memory = Annotated[str | None, Option("--memory", help="What weights and cache may take: 24GiB.")]
Context = Annotated[str | None, Option("--context", help="Tokens of one sequence in the cache.")]
Devices = Annotated[
    list[str] | None,
    Option("--device", help="Device: name, memory (24GiB), this or cpu. May be repeated."),
]
HostMemory = Annotated[str | None, Option("--host-memory", help="Memory of the host: 64GiB.")]
Host = Annotated[str | None, Option("--host", help="Host: ddr5-5600x2 (kind, speed, channels) or a processor.")]
Used = Annotated[list[str] | None, Option("--used", help="Memory that other programs take of each device.")]
Imatrix = Annotated[bool, Option("--imatrix", help="Made with an importance matrix.")]


@app.command("import")
def import_(source: Source, target: Target = None, settings: Set = None) -> None:
    """Write the profile of a checkpoint's own files, with provenance.

    Example: kvcalc models import ./checkpoint/config.json -o my-model.yaml
    """
    from kvcalc import api
    from kvcalc.cli.shared import tell_origins
    from kvcalc.files import check_writable, write_whole

    check_writable([target])
    text = api.profile_text(api.load_model(source, settings=settings or ()))
    tell_origins()
    if target is None:
        sys.stdout.write(text)
    else:
        write_whole(target, text.encode())
        sys.stderr.write(f"wrote {target}\n")


@app.command()
def lint(source: Linted, json: Json = False) -> None:
    """Say of each key of a config that decides memory or compute: used, defaulted or ignored.

    Example: kvcalc models lint ./checkpoint/config.json
    """
    from kvcalc import api
    from kvcalc.render.output import lint_text

    sys.stdout.write(lint_text(api.lint_config(source), json=json))


@app.command()
def quants(
    model: Quantised,
    memory: Memory = None,
    context: Context = None,
    *,
    imatrix: Imatrix = False,
    json: Json = False,
    output: Output = "table",
) -> None:
    """List a model's size in every llama.cpp recipe, to the byte, and which ones fit in a memory.

    Example: kvcalc models quants llama3.1-8b --memory 8GiB
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit
    from kvcalc.core import readers

    shown = command_output(output, json=json)
    tokens = None if context is None else readers.count(context, "context")
    memory_bytes = None if memory is None else readers.memory(memory, "memory")
    emit(api.quants(model, memory_bytes=memory_bytes, context=tokens, imatrix=imatrix), shown)


@app.command()
def fit(
    search: Search = "",
    device: Devices = None,
    context: Context = "4096",
    host_memory: HostMemory = None,
    host: Host = None,
    used: Used = None,
    *,
    json: Json = False,
    output: Output = "table",
) -> None:
    """List the models that llama.cpp runs on a machine, each in the largest quantization that fits, with its speed.

    Example: kvcalc models fit qwen3 --device rtx-4090 --host-memory 64GiB
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit
    from kvcalc.core import readers

    shown = command_output(output, json=json)
    memory_bytes = None if host_memory is None else readers.memory(host_memory, "host-memory")
    tokens = readers.count(context, "context")
    report = api.models_fit(
        device or (), search=search, context=tokens, host_memory_bytes=memory_bytes, host=host, used=used or ()
    )
    emit(report, shown)
