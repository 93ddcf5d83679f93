#!/usr/bin/env bash
# Run the tests with the oldest versions that pyproject.toml allows, or with the newest there are, in a fresh environment.
#   tests/tools/dependencies.sh oldest|newest [arguments of pytest]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
versions=${1:-}
[ "$versions" = oldest ] || [ "$versions" = newest ] || { echo "usage: $0 oldest|newest [arguments of pytest]" >&2; exit 2; }
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/constraints.txt"
[ "$versions" = newest ] || "$python" - "$root/pyproject.toml" > "$work/constraints.txt" <<'PY'
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
used = ("charts", "cluster", "demo", "explore", "parquet", "test")
for requirement in [*project["dependencies"], *(each for name in used for each in extras[name])]:
    lowest = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", requirement)
    if lowest:  # not the project's own extras
        print(f"{lowest[1]}=={lowest[2]}")
PY
cat "$work/constraints.txt"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --upgrade --upgrade-strategy eager -c "$work/constraints.txt" "$root[test]"
cd "$root"
arguments=("$@")
[ ${#arguments[@]} -gt 0 ] || arguments=(tests/unit tests/cli tests/contracts tests/property)
"$work/venv/bin/python" -m pytest -q -n auto -p no:cacheprovider "${arguments[@]}"
