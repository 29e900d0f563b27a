#!/bin/sh
# Makes .venv from the lock files and sees to it that there is a Java for Spark. Run by `make setup`.
#
# Needs only a POSIX shell and Python >= 3.11; what else is missing comes from the system's package
# manager where this user may install, or is asked for in one command. Quick when nothing changed.
# .venv/.installed is written last and says what the environment was made from: without it the
# environment is taken for half-made and made anew.
#
#   PYTHON=python3.12 make setup    chooses the interpreter
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.installed

say() { echo "setup: $*"; }
stop() { echo "setup: $*" >&2; exit 1; }

command -v "$python" >/dev/null || stop "found no '$python'. Install Python >= 3.11, or name one: PYTHON=/path/to/python3 make setup"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  stop "$python is Python $version; Millpond needs >= 3.11. Name a newer one: PYTHON=python3.11 make setup"

# --- what is missing from the system, and the one command that installs it

find_java() { "$python" -I src/millpond/spark/environment/java.py; }

install_command() {
  if command -v apt-get >/dev/null; then
    packages=
    [ -z "$lacks_venv" ] || packages="$packages python$version-venv"
    [ -n "$java" ] || packages="$packages $(apt_java)"
    echo "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends$packages"
  elif command -v dnf >/dev/null; then
    echo "dnf install -y java-21-openjdk-headless" # its python3 comes with venv
  elif command -v brew >/dev/null; then
    echo "brew install openjdk@17" # so does its python3
  fi
}

# Debian 13 has no release 17 any more. A machine that never ran apt-get update knows of none.
apt_java() {
  for release in 17 21 25; do
    if apt-cache show "openjdk-$release-jre-headless" >/dev/null 2>&1; then
      echo "openjdk-$release-jre-headless"
      return
    fi
  done
  echo openjdk-17-jre-headless
}

install_missing() {
  command=$(install_command)
  [ -n "$command" ] || stop "install Java >= 17 and Python's venv module, then run this again"
  case $command in
    brew*) as_user= ;;
    *) as_user=$(root_prefix) ;;
  esac
  say "running: $command"
  log=$(mktemp)
  $as_user sh -c "$command" >"$log" 2>&1 || { cat "$log" >&2; stop "that failed; its output is above"; }
  rm -f "$log"
}

# How to run something as root: nothing for root, sudo where it asks no password; else the user has to.
root_prefix() {
  [ "$(id -u)" != 0 ] || return 0
  ! sudo -n true 2>/dev/null || { echo "sudo -n"; return; }
  how="su -c"
  ! command -v sudo >/dev/null || how="sudo sh -c"
  stop "this user may not install packages. Type this one command, then run make again:

    $how '$command'
"
}

lacks_venv=
"$python" -c 'import ensurepip, venv' 2>/dev/null || lacks_venv=yes
java=$(find_java) || true # it says itself what it found instead
if [ -n "$lacks_venv" ] || [ -z "$java" ]; then
  [ -z "$lacks_venv" ] || say "$python has no ensurepip, which making $venv needs"
  install_missing
  java=$(find_java)
fi

# --- the virtual environment

wanted="$("$python" -V) $(cat requirements*.lock pyproject.toml scripts/setup.sh | cksum)"
if [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
  say "nothing to do (Python $version, Java at $java)"
  exit 0
fi

if [ ! -e $stamp ] || [ "$($venv/bin/python -V 2>/dev/null)" != "$("$python" -V)" ]; then
  [ ! -e $venv ] || say "$venv is half-made or of another Python: making it anew"
  say "making $venv with $("$python" -V)"
  rm -f $stamp
  "$python" -m venv --clear $venv
fi
rm -f $stamp

pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
say "installing $(grep -c '==' requirements.lock) packages from requirements.lock (pyspark alone is 450 MB: some minutes)"
pip install --require-hashes -r requirements-build.lock
pip install --require-hashes --no-build-isolation -r requirements.lock
pip install --no-deps --no-build-isolation -e .
echo "$wanted" >$stamp
say "done (Python $version, Java at $java)"
