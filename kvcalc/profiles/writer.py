"""Profiles as text: the YAML of a profile file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kvcalc.core.calibration import Calibration
from kvcalc.core.hardware import HardwareProfile
from kvcalc.profiles.document import calibration_to_document, hardware_to_document, model_to_document
from kvcalc.profiles.reader import plain_scalar

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["profile_yaml"]

_SCHEMA = "# yaml-language-server: $schema={}/schemas/{}.schema.json\n"
_BESIDE = {"calibration": ".."}  # where the shipped ones stand; the others are in folders beside the package


class _Dumper(yaml.SafeDumper):
    """Quotes text that our reader, which follows YAML 1.2, would take for a number or a truth value."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  the library's signature
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        style = '"'
    elif not isinstance(plain_scalar(text), str):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def profile_yaml(profile: ModelProfile | HardwareProfile | Calibration) -> str:
    """Return a profile as YAML that reads back to an equal profile, inner mappings on one line each."""
    if isinstance(profile, HardwareProfile):
        kind, document = "hardware", hardware_to_document(profile)
    elif isinstance(profile, Calibration):
        kind, document = "calibration", calibration_to_document(profile)
    else:
        kind, document = "model", model_to_document(profile)
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
    return _SCHEMA.format(_BESIDE.get(kind, "../kvcalc/profiles"), kind) + text
