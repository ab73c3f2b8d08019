# shellcheck shell=bash
# Functions for all scripts. Each script sources this file after `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# usage prints the comment at the top of the calling script.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# can_install succeeds if packages can be installed without a question.
can_install() {
  [ "$(id -u)" = 0 ] && [ "${CDC_RELAY_INSTALL:-1}" != 0 ] && command -v apt-get >/dev/null
}

# apt_get waits for other installations by these scripts and tests: apt-get update does not wait by itself.
apt_get() { flock /var/cache/apt apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }

# install_packages installs Debian packages. It shows the output only after an error.
install_packages() {
  local log
  log=$(mktemp)
  say "installing with apt-get: $*"
  if ! { apt_get update && DEBIAN_FRONTEND=noninteractive apt_get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# attend runs a command, passes signals on to it and returns its exit code. With a command in the foreground, a shell
# handles a signal only after the command has ended. Ctrl-C is passed on as SIGTERM, because background commands of a
# script ignore SIGINT.
attend() {
  local child code=0
  "$@" <&0 &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' INT TERM HUP
  while :; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  trap - INT TERM HUP
  return "$code"
}

# with_services builds the program that provides the servers and runs it: [--signal-leader] COMMAND [ARGUMENT…]
with_services() {
  (cd "$root" && go build -o bin/with-services ./test/services/cmd/with-services)
  attend "$root/bin/with-services" "$@"
}
