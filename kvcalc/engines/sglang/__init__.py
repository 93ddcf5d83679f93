"""SGLang: the pools that it makes of the memory that weights leave, and the share of a GPU's memory that it takes.

The rules were read from SGLang 0.5.23 and checked against its own code. Not modelled: drafts by DFLASH, hierarchical
caches, decode context parallelism, unified memory, and accelerators other than NVIDIA's beside their memory.
"""

from kvcalc.engines.sglang.pools import Need, PoolSizes, RankPools
from kvcalc.engines.sglang.start import rank_pools

__all__ = ["VERSION", "Need", "PoolSizes", "RankPools", "rank_pools", "version_notes"]

VERSION = "0.5.23"


def version_notes(version: str | None) -> tuple[str, ...]:
    """Say that the rules are those of another version than the one asked for; nothing where they are not."""
    if version in (None, VERSION):
        return ()
    return (f"the pools are those of SGLang {VERSION}, which is another than {version}",)
