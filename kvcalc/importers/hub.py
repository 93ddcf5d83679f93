"""A model's config from the Hugging Face hub, where huggingface-hub is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError, UnknownNameError

if TYPE_CHECKING:
    from kvcalc.core.errors import KvcalcError

__all__ = ["fetch_config"]

_LONGEST_S = 10.0
# The hub's errors by the name of their class, the more special first.
_REASONS = {
    "ConnectError": "the hub cannot be reached, and the config is not in its cache",
    "GatedRepoError": "access to it is restricted, and this machine is not logged in as someone who has it",
    "RepositoryNotFoundError": "the hub has no such model, or it is private",
    "RevisionNotFoundError": "the hub has no such revision",
    "OfflineModeIsEnabled": "the hub is switched off (HF_HUB_OFFLINE), and the config is not in its cache",
    "LocalEntryNotFoundError": "the hub cannot be reached, and the config is not in its cache",
    "EntryNotFoundError": "the model has no config.json",
}


def fetch_config(hub_id: str, unknown: KvcalcError) -> Path:
    """Return the local copy of a model's ``config.json``: from the hub's cache, else downloaded into it.

    Args:
        hub_id: the model, as ``owner/name``.
        unknown: the error to raise where huggingface-hub is not installed.

    Raises:
        UnknownNameError: huggingface-hub is not installed.
        ProfileError: the hub has no such config, or cannot be reached.
    """
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    except ImportError:
        install = f"to read {hub_id} from the hub: pip install 'kvcalc[hub]'"
        hint = f"{unknown.hint}; {install}" if unknown.hint else install
        raise UnknownNameError(unknown.what, hint=hint) from None
    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        # asked once: a download asks six times within half a minute, and tells of each
        get_hf_file_metadata(hf_hub_url(hub_id, "config.json"), timeout=_LONGEST_S)
        return Path(hf_hub_download(hub_id, "config.json"))
    except Exception as error:
        raise ProfileError(
            f"the config of {hub_id[:100]!r} could not be fetched: {_reason(error)}",
            hint="check the name, `hf auth login` for gated models, or give a config.json",
        ) from error


def _reason(error: Exception) -> str:
    """Return one line: the hub's own messages are long, and the first line may be only an HTTP status."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    known = next((reason for name, reason in _REASONS.items() if name in kinds), None)
    lines = str(error).strip().splitlines()
    return known or (lines[0][:200] if lines else type(error).__name__)
