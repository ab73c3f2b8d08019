#!/bin/sh
# Runs after the files of the deb or rpm are installed. A new service is not started: it needs its URLs first.
set -e

[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
systemctl try-restart cdc-relay 'cdc-relay@*' # after an update
