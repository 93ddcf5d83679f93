#!/usr/bin/env bash
# Run the tests with the oldest versions that pyproject.toml allows, in a fresh environment. Arguments go to pytest.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" - "$root/pyproject.toml" > "$work/constraints.txt" <<'PY'
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *extras["parquet"], *extras["cluster"], *extras["explore"], *extras["test"]]:
    found = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", requirement)
    if found:  # not the project's own extras
        print(f"{found[1]}=={found[2]}")
PY
cat "$work/constraints.txt"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q -c "$work/constraints.txt" "$root[test]"
cd "$root"
arguments=("$@")
[ ${#arguments[@]} -gt 0 ] || arguments=(tests/unit tests/cli tests/contracts tests/property)
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider "${arguments[@]}"
