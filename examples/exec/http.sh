#!/usr/bin/env bash
# usage: cdc-relay run --publisher exec -- ./http.sh URL
# Posts each message to an HTTP endpoint, as the line that the relay writes.

set -euo pipefail
url=$1

while IFS= read -r line; do
  id=${line#*'"message_id":"'} id=${id:0:36} # the second key; jq cannot read deeply nested payloads
  status=$(curl -s -o /dev/null -m 5 -w '%{http_code}' -H 'Content-Type: application/json' -H "Idempotency-Key: $id" \
    --data-binary @- "$url" <<<"$line") || true
  case "$status" in
  2??) outcome='"confirmed"' ;;
  408 | 425 | 429 | 5??) outcome='"rejected", "retry_in": "10s"' ;;
  4??) outcome='"impossible"' ;;
  *) outcome='"unknown"' ;; # no answer: the endpoint may have received it
  esac
  echo "{\"message_id\": \"$id\", \"outcome\": $outcome, \"detail\": \"HTTP $status\"}"
done
