"""The subcommands that model and accelerator profiles have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from kvcalc.profiles.catalog import Kind

__all__ = ["Json", "Output", "Set", "profiles_app"]

Name = Annotated[str, typer.Argument(help="Catalogue name, alias or file.")]
Words = Annotated[list[str] | None, typer.Argument(help="Show only those whose name or description has all of them.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a profile field: kv_heads=64. May be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Output = Annotated[str, typer.Option("--output", "-o", help="table, json, jsonl, csv or md.")]
Sort = Annotated[str, typer.Option("--sort", help="Sort by this column: names from a, numbers from the largest.")]
File = Annotated[list[Path], typer.Argument(help="Profile files.")]


class _Listing(TyperGroup):
    """A group whose words are those to list by where they name no command: ``kvcalc gpus h100``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        listed = not args[0].startswith("-") and args[0] not in self.commands
        return super().resolve_command(ctx, ["list", *args] if listed else args)


def profiles_app(kind: Kind, description: str) -> typer.Typer:
    """Return the commands ``list``, ``show``, ``validate`` and ``schema`` for a kind of profile."""
    plain: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
    app = typer.Typer(cls=_Listing, help=description, **plain)
    plural = {"model": "models", "hardware": "gpus"}[kind]

    def show_list(words: list[str], *, sort: str, json: bool, output: str) -> None:
        from kvcalc import api
        from kvcalc.cli.shared import command_output, emit

        emit(api.catalogue_table(kind, words, sort=sort), command_output(output, json=json))

    @app.callback(invoke_without_command=True)
    def default(ctx: typer.Context, sort: Sort = "name", json: Json = False, output: Output = "table") -> None:
        if ctx.invoked_subcommand is None:
            show_list([], sort=sort, json=json, output=output)

    @app.command("list")
    def list_(words: Words = None, sort: Sort = "name", json: Json = False, output: Output = "table") -> None:
        show_list(words or [], sort=sort, json=json, output=output)

    @app.command()
    def show(name: Name, json: Json = False) -> None:
        from kvcalc import api
        from kvcalc.cli.shared import tell_origins
        from kvcalc.render.output import profile_json

        profile = api.load_model(name) if kind == "model" else api.load_hardware(name)
        tell_origins()
        sys.stdout.write(profile_json(profile) if json else api.profile_text(profile))

    @app.command()
    def validate(files: File) -> None:
        from kvcalc import api

        for file in files:
            api.validate_profile(file, kind)
            sys.stdout.write(f"{file}: valid\n")

    @app.command()
    def schema() -> None:
        import json

        from kvcalc import api

        sys.stdout.write(json.dumps(api.profile_schema(kind), indent=2) + "\n")

    examples = {"model": "list llama --sort parameters", "hardware": "list nvidia --sort bandwidth"}
    default.__doc__ = description
    list_.__doc__ = f"List them in a table.\n\nExample: kvcalc {plural} {examples[kind]}"
    show.__doc__ = (
        f"Print a profile as YAML.\n\nExample: kvcalc {plural} show {'llama2-70b' if kind == 'model' else 'h100-sxm'}"
    )
    validate.__doc__ = f"Check profile files against the schema.\n\nExample: kvcalc {plural} validate my-profile.yaml"
    schema.__doc__ = f"Print the JSON Schema of profile files.\n\nExample: kvcalc {plural} schema"
    return app
