"""SGLang: the pools that it makes of the memory that weights leave, and the share of a GPU's memory that it takes.

The rules were read from SGLang 0.5.23 and checked against its own code. Not modelled: drafts by DFLASH, hierarchical
caches, decode context parallelism, unified memory, and accelerators other than NVIDIA's beside their memory.
"""

import re

from kvcalc.core.errors import InputError
from kvcalc.engines.sglang.pools import Need, PoolSizes, RankPools
from kvcalc.engines.sglang.start import rank_pools

__all__ = ["VERSION", "Need", "PoolSizes", "RankPools", "rank_pools", "version_notes"]

VERSION = "0.5.23"
_RELEASE = re.compile(r"v?\d+(\.\d+){1,2}\w*([.+-]\w+)*")


def version_notes(version: str | None) -> tuple[str, ...]:
    """Say that the rules are those of another version than the one asked for; nothing where they are not.

    Raises:
        InputError: not a version.
    """
    if version in (None, VERSION):
        return ()
    if not _RELEASE.fullmatch(version or ""):
        raise InputError(f"{version!r} is not a version of SGLang", hint=f"for example {VERSION}")
    return (f"the pools are those of SGLang {VERSION}, not of {version}",)
