#!/usr/bin/env bash
# Write .ci/requirements.txt: every version and hash that CI installs, for each system and Python. PyTorch is not in it.
# Arguments go to uv: --upgrade, or --upgrade-package NAME.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv=$(command -v uv) || {
  "${PYTHON:-python3}" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install -q uv
  uv=$work/venv/bin/uv
}
"$uv" pip compile -q pyproject.toml --extra dev --extra docs --extra browser-test --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --no-annotate --no-header --output-file .ci/requirements.txt "$@"
sed -i.orig '1i # Written by tests/tools/write_lock.sh from pyproject.toml.' .ci/requirements.txt && rm .ci/requirements.txt.orig
