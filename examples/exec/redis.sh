#!/usr/bin/env bash
# usage: cdc-relay run --publisher exec -- ./redis.sh HOST PORT STREAM
# Adds each message to a Redis stream, in the field "message".

set -euo pipefail
host=$1 port=$2 stream=$3

while IFS= read -r line; do
  id=$(jq -r .message_id <<<"$line")
  answer=$(redis-cli -h "$host" -p "$port" XADD "$stream" '*' message_id "$id" message "$line" 2>&1 </dev/null) || true
  if [[ $answer =~ ^[0-9]+-[0-9]+$ ]]; then # the id of the entry
    outcome='"confirmed"'
  elif [[ $answer =~ ^[A-Z]+\  ]]; then # WRONGTYPE …, OOM …: Redis rejected it
    outcome='"rejected"'
  else
    outcome='"unknown"'
  fi
  jq -cn --arg id "$id" --argjson outcome "$outcome" --arg detail "$answer" '{message_id: $id, outcome: $outcome, detail: $detail}'
done
