"""Profiles as text: the YAML of a profile file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kvcalc.core.hardware import HardwareProfile
from kvcalc.profiles.document import hardware_to_document, model_to_document

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["profile_yaml"]

_SCHEMA = "# yaml-language-server: $schema=../kvcalc/profiles/schemas/{}.schema.json\n"


def profile_yaml(profile: ModelProfile | HardwareProfile) -> str:
    """Return a profile as YAML that reads back to an equal profile, inner mappings on one line each."""
    is_hardware = isinstance(profile, HardwareProfile)
    document = hardware_to_document(profile) if isinstance(profile, HardwareProfile) else model_to_document(profile)
    text = yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
    return _SCHEMA.format("hardware" if is_hardware else "model") + text
