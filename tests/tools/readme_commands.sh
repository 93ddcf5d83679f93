#!/usr/bin/env bash
# Run one of the README's two commands exactly as it stands there, in a fresh copy of the checkout: `run` or `test`.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command=$(sed -n "/<!-- command: $1 -->/,/^\`\`\`\$/p" "$root/README.md" | sed '1,2d;$d')
[ -n "$command" ] || { echo "README.md has no command marked $1" >&2; exit 2; }
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git -C "$root" ls-files -z --cached --others --exclude-standard | tar -C "$root" --null -T - -c | tar -C "$copy" -x
cd "$copy"
echo "+ $command"
eval "$command"
