#!/bin/sh
# Runs before the files are removed: with "remove" (deb) or 0 (rpm). An update leaves the service alone.
set -e

[ -d /run/systemd/system ] || exit 0
case "$1" in
remove | 0)
  systemctl --no-reload disable --now cdc-relay
  systemctl --no-reload stop 'cdc-relay@*'
  ;;
esac
