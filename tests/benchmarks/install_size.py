"""Size of what ``pip install kvcalc`` brings, extras left out: ``python tests/benchmarks/install_size.py``.

Prints each distribution with the bytes of its files, compiled ones not counted, and exits with 1 above the bar.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / ".ci"))

from sbom import required

BAR_BYTES = 60e6


def size_bytes(of: Distribution) -> int:
    """Return the bytes of a distribution's files."""
    paths = [Path(of.locate_file(file)) for file in of.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Measure and print."""
    sizes: dict[str, int] = {}
    waiting = [distribution("kvcalc")]
    while waiting:
        one = waiting.pop()
        if one.metadata["Name"] not in sizes:
            sizes[one.metadata["Name"]] = size_bytes(one)
            waiting += required(one)
    for name, size in sorted(sizes.items(), key=lambda each: -each[1]):
        print(f"{name}: {size / 1e6:.1f} MB")
    whole = sum(sizes.values())
    print(f"pip install kvcalc: {whole / 1e6:.1f} MB (bar: {BAR_BYTES / 1e6:.0f})")
    return int(whole > BAR_BYTES)


if __name__ == "__main__":
    sys.exit(main())
