#!/usr/bin/env bash
# usage: cdc-relay run --publisher exec -- ./http.sh URL
# Posts each message to an HTTP endpoint, as the line that the relay writes.

set -euo pipefail
url=$1

while IFS= read -r line; do
  id=${line#*'"message_id":"'} id=${id:0:36} # the second key; jq cannot read deeply nested payloads
  failed=0
  answer=$(curl -s -o /dev/null -m 5 -w '%{http_code} %{time_pretransfer}' -H 'Content-Type: application/json' \
    -H "Idempotency-Key: $id" --data-binary @- "$url" <<<"$line") || failed=$?
  status=${answer%% *} detail="HTTP $status"
  [[ $failed = 0 ]] || detail="curl failed with exit status $failed"
  case "$status" in
  2??) outcome='"confirmed"' ;;
  3?? | 408 | 425 | 429 | 5??) outcome='"rejected", "retry_in": "10s"' ;;
  4??) outcome='"impossible"' ;;
  *)
    case "$failed ${answer#* }" in
    [1-7]\ * | 35\ * | 60\ * | '28 0.000000') outcome='"not_sent"' ;; # no name, no connection, no TLS
    *) outcome='"unknown"' ;;                                        # the endpoint may have received it
    esac
    ;;
  esac
  echo "{\"message_id\": \"$id\", \"outcome\": $outcome, \"detail\": \"$detail\"}"
done
