package main

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// reasonCodes are the codes of docs/contract.md. The publisher of an embedding program may have others.
func reasonCodes() []string {
	return []string{
		"nack", "unroutable", "exchange_missing", "access_refused", "broker_rejected", "handler_rejected", "retries_exhausted",
		"too_large", "invalid_headers", "invalid_properties", "invalid_routing", "invalid_row", "handler_impossible", "expired",
	}
}

// reasonText says why a message became a dead letter. For exhausted retries, that is the last rejection.
func reasonText(m operator.DeadMessage) (says, fix string) {
	code := m.Reason
	if m.Reason == "retries_exhausted" && m.LastError != nil {
		code, _, _ = strings.Cut(*m.LastError, ":")
	}
	text := ""
	if m.LastError != nil {
		text = *m.LastError
	}
	meaning, fix := outbox.Reason(code).Advice(m.Exchange, text)
	says = printable(m.Reason)
	if meaning != "" {
		says += ": " + meaning
	}
	return says, fix
}
