#!/bin/sh
# Builds the wheel of this platform and a Python, whose hot modules mypyc compiles, into a folder. Run by `make compiled`,
# `make dist` and `make matrix`.
#
# It is built from the source distribution and outside the tree: the build leaves compiled modules beside their sources,
# where Python would take them instead of these, changed or not.
#
#   scripts/compiled_wheel.sh FOLDER [PYTHON]
set -eu
cd "$(dirname "$0")/.."

folder=$1
python=${2:-.venv/bin/python}
say() { echo "compiled wheel: $*" >&2; }

command -v cc >/dev/null || { say "a C compiler is needed: install gcc or clang, then run this again"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() {
  .venv/bin/uv build --quiet --python "$python" --build-constraint requirements-build.lock --require-hashes "$@"
}
build --sdist --out-dir "$work"
HATCH_BUILD_HOOK_ENABLE_MYPYC=1 build --wheel --out-dir "$work" "$work"/*.tar.gz
mkdir -p "$folder"
if [ "$(uname)" = Linux ]; then
  # Package indexes take a wheel for Linux only with the oldest C library that it runs with in its name.
  PATH="$PWD/.venv/bin:$PATH" .venv/bin/auditwheel repair --wheel-dir "$folder" "$work"/*.whl 2>"$work/log" ||
    { cat "$work/log" >&2; exit 1; }
else
  cp "$work"/*.whl "$folder"
fi
