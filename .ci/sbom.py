"""Write a bill of materials, CycloneDX 1.6 JSON on standard output: what kvcalc is installed with in this environment.

    python .ci/sbom.py [DISTRIBUTION]      # kvcalc, if none is named

Listed is what the distribution asks for, directly or not, in the versions installed beside it. Extras are left out.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normal(name: str) -> str:
    """The one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(of: Distribution) -> list[Distribution]:
    """The installed distributions that one asks for, extras left out."""
    found = {}
    for requirement in of.requires or ():
        if "extra ==" in requirement:
            continue
        name = normal(NAME.match(requirement)[0])
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # asked for on other systems or by other versions of Python
    return [found[name] for name in sorted(found)]


def reference(of: Distribution) -> str:
    """The package URL of a distribution."""
    return f"pkg:pypi/{normal(of.metadata['Name'])}@{of.version}"


def component(of: Distribution) -> dict[str, Any]:
    """A distribution as CycloneDX lists it."""
    entry = {
        "type": "library",
        "bom-ref": reference(of),
        "name": of.metadata["Name"],
        "version": of.version,
        "purl": reference(of),
    }
    license_text = of.metadata.get("License-Expression")
    return entry | ({"licenses": [{"expression": license_text}]} if license_text else {})


def main() -> None:
    """Walk from a distribution to everything it needs."""
    root = distribution(sys.argv[1] if sys.argv[1:] else "kvcalc")
    known, waiting = {reference(root): root}, [root]
    edges = []
    while waiting:
        one = waiting.pop()
        needs = required(one)
        edges.append({"ref": reference(one), "dependsOn": [reference(each) for each in needs]})
        fresh = {reference(each): each for each in needs if reference(each) not in known}
        known |= fresh
        waiting += fresh.values()
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root) | {"type": "application"}},
        "components": [component(each) for each in known.values() if each is not root],
        "dependencies": sorted(edges, key=lambda edge: edge["ref"]),
    }
    print(json.dumps(bill, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
