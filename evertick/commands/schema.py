"""``evertick schema``: the contract for those who subscribe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def schema() -> None:
    """The contract: JSON Schemas and an AsyncAPI document of all that travels on Kafka."""


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder, made where missing.")],
    breaking: Annotated[
        bool, typer.Option("--breaking", help="Replace copies even where that breaks readers.")
    ] = False,
) -> None:
    """Write a JSON Schema for each model and version, and asyncapi.json.

    Where the folder holds earlier copies and a change would break who codes against them, nothing
    is written: such a change needs a new version of the schema.

    Example: evertick schema export ./contract
    """
    from bus.settings import SettingsError
    from evertick import compatibility, contract

    documents = contract.documents()
    try:
        told = compatibility.breaking(
            published(folder), {name: json.loads(text) for name, text in documents.items()}
        )
        if told and not breaking:
            raise SettingsError(
                "\n".join(
                    [f"nothing was written to {folder}; these need a new schema version:", *told]
                )
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error.strerror or error}") from None
    typer.echo(f"{len(documents)} files in {folder}")


def published(folder: Path) -> dict[str, Any]:
    """The copies in a folder, by file name; none where the folder is missing.

    Raises:
        SettingsError: one is not JSON.
    """
    from bus.settings import SettingsError

    found = {}
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise SettingsError(f"{file} is not JSON: {error}; remove or mend it") from None
        if isinstance(document, dict) and ("x-topic" in document or "asyncapi" in document):
            found[file.name] = document
    return found
