#!/bin/sh
# Runs after the files are removed. "purge" (deb) removes the settings, also the URLs with their passwords.
set -e

case "$1" in
purge) rm -rf /etc/cdc-relay ;;
esac
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
