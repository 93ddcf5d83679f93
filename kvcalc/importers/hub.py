"""A model's config from the Hugging Face hub, where huggingface-hub is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError, UnknownNameError

if TYPE_CHECKING:
    from kvcalc.core.errors import KvcalcError

__all__ = ["fetch_config"]


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
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError:
        hint = f"{unknown.hint}; to read {hub_id} from the hub: pip install 'kvcalc[hub]'"
        raise UnknownNameError(unknown.what, hint=hint) from None
    cached = try_to_load_from_cache(hub_id, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    try:
        return Path(hf_hub_download(hub_id, "config.json"))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ProfileError(
            f"the config of {hub_id!r} could not be fetched: {reason}"[:300],
            hint="check the name, `hf auth login` for gated models, or give a config.json",
        ) from error
