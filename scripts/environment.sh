#!/usr/bin/env bash
# Makes the Python environment: third-party packages once, in a cache that all checkouts share; in the checkout only
# small launchers that add its own source roots.
# usage: environment.sh CACHED_ENVIRONMENT LAUNCHERS
set -euo pipefail
cached=$1 launchers=$2
cd "$(dirname "$0")/.."

python=$(command -v python3.11 || command -v python3 || true)
if [ -z "$python" ]; then
  echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "Python 3.11 or newer is needed, and $python is $("$python" -V 2>&1)" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "Python's venv module is missing: apt-get install python3-venv" >&2
  exit 1
fi

if [ ! -e "$cached/.complete" ]; then
  echo "installing the Python packages into $cached (once, a few minutes)"
  rm -rf "$cached"
  mkdir -p "$(dirname "$cached")"
  "$python" -m venv "$cached"
  "$python" scripts/requirements.py >"$cached/requirements.txt"
  "$cached/bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt uv
  "$cached/bin/uv" pip install --quiet --python "$cached/bin/python" --constraint constraints.txt \
    --requirement "$cached/requirements.txt"
  touch "$cached/.complete"
fi

mkdir -p "$launchers/bin"
roots=""
for root in contract policies operator trainer_image cli sandbox; do
  roots="$roots$PWD/$root:"
done
launch() {
  cat >"$launchers/bin/$1" <<END
#!/bin/sh
PYTHONPATH="$roots\${PYTHONPATH:-}" PATH="$cached/bin:\$PATH" exec $2 "\$@"
END
  chmod +x "$launchers/bin/$1"
}
for tool in python ruff pyright lint-imports; do
  launch "$tool" "\"$cached/bin/$tool\""
done
launch torchrun "\"$cached/bin/python\" -m torch.distributed.run"
for name in trimtab kubectl-trimtab; do
  launch "$name" "\"$cached/bin/python\" -m trimtab_cli"
done
