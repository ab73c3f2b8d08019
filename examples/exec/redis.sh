#!/usr/bin/env bash
# usage: cdc-relay run --publisher exec -- ./redis.sh HOST PORT STREAM
# Adds each message to a Redis stream, in the field "message".

set -euo pipefail
host=$1 port=$2 stream=$3

while IFS= read -r line; do
  id=${line#*'"message_id":"'} id=${id:0:36} # the second key; jq cannot read deeply nested payloads
  # -x reads the last argument from the standard input: a program's argument is limited to 128 KiB on Linux.
  answer=$(printf %s "$line" | redis-cli -h "$host" -p "$port" -x XADD "$stream" '*' message_id "$id" message 2>&1) || true
  if [[ $answer =~ ^[0-9]+-[0-9]+$ ]]; then # the id of the entry
    outcome='"confirmed"'
  elif [[ $answer == WRONGTYPE\ * ]]; then # the key is not a stream
    outcome='"rejected"'
  elif [[ $answer == 'Could not connect to Redis'* || $answer =~ ^[A-Z]+\  ]]; then # OOM …, READONLY …: not stored
    outcome='"not_sent"'
  else # the connection broke: Redis may have it
    outcome='"unknown"'
  fi
  jq -cn --arg id "$id" --argjson outcome "$outcome" --arg detail "$answer" '{message_id: $id, outcome: $outcome, detail: $detail}'
done
