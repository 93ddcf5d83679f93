"""The subcommands that model and accelerator profiles have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.cli.options import Json

if TYPE_CHECKING:
    from kvcalc.profiles.catalog import Kind

__all__ = ["profiles_app"]

Name = Annotated[str, typer.Argument(help="Catalogue name, alias or file.")]
Search = Annotated[str, typer.Argument(help="Show only names with this text.")]
File = Annotated[list[Path], typer.Argument(help="Profile files.")]


def profiles_app(kind: Kind, description: str) -> typer.Typer:
    """Return the commands ``list``, ``show``, ``validate`` and ``schema`` for a kind of profile."""
    app = typer.Typer(help=description, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    plural = {"model": "models", "hardware": "gpus"}[kind]

    def show_list(search: str, *, json: bool) -> None:
        from kvcalc import api
        from kvcalc.render.output import names_text

        found = [name for name in api.profile_names(kind) if search.lower() in name]
        sys.stdout.write(names_text(plural, found, json=json))

    @app.callback(invoke_without_command=True)
    def default(ctx: typer.Context, json: Json = False) -> None:
        if ctx.invoked_subcommand is None:
            show_list("", json=json)

    @app.command("list")
    def list_(search: Search = "", json: Json = False) -> None:
        show_list(search, json=json)

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

    default.__doc__ = description
    list_.__doc__ = f"List the names.\n\nExample: kvcalc {plural} list {'llama' if kind == 'model' else 'h100'}"
    show.__doc__ = (
        f"Print a profile as YAML.\n\nExample: kvcalc {plural} show {'llama2-70b' if kind == 'model' else 'h100-sxm'}"
    )
    validate.__doc__ = f"Check profile files against the schema.\n\nExample: kvcalc {plural} validate my-profile.yaml"
    schema.__doc__ = f"Print the JSON Schema of profile files.\n\nExample: kvcalc {plural} schema"
    return app
