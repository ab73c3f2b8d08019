package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// mistakes are rows that the table accepts but that cannot be published: some of each kind. publish/wire has all. Each error must name the column and say what
// to do.
func mistakes() []content {
	const (
		badRow, badRouting     = "invalid_row", "invalid_routing"
		badHeaders, badOptions = "invalid_headers", "invalid_properties"
	)
	property := func(name, object, says string) content {
		return content{name: name, row: row{"properties": object}, reason: badOptions, says: says}
	}
	return []content{
		{name: "no payload at all", row: row{"payload": nil}, reason: badRow, says: "payload and payload_bytes are both null: set one of them"},
		{
			name: "both payloads", row: row{"payload": "{}", "payload_bytes": []byte("x")}, reason: badRow,
			says: "payload and payload_bytes are both set: set only one of them",
		},
		{
			name: "routing key of 256 bytes", row: row{"routing_key": strings.Repeat("k", 256)}, reason: badRouting,
			says: "routing_key is longer than 255 bytes",
		},
		{
			name: "routing key of 20 MB", row: row{"routing_key": strings.Repeat("k", 20<<20)}, reason: badRouting,
			says: "routing_key is too large: more than 1048576 bytes",
		},
		{name: "headers are an array", row: row{"headers": "[]"}, reason: badHeaders, says: "headers: must be a JSON object, not JSON array"},
		{name: "headers are JSON null", row: row{"headers": "null"}, reason: badHeaders, says: "headers: must be a JSON object, not JSON null"},
		property("properties are JSON null", "null", "properties: must be a JSON object, not JSON null"),
		property("unknown property", `{"contenttype": "x"}`, `"contenttype" is not known; known are content_type`),
		property("property of 20 MB", `{"type": "`+strings.Repeat("t", 20<<20)+`"}`, `properties is too large: more than 1048576 bytes`),
		{name: "negative attempts", row: row{"attempts": -1}, reason: badRow, says: "attempts is -1, must not be negative: leave it out"},
	}
}

// Covers rows that are in the table at the start and streamed rows, without a key and first of a key. Neighbours on the
// same exchange arrive once, without an attempt, and the connection to the broker stays.
func TestAnUnpublishableRowIsDeadLetteredAlone(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "poll"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			deadLetteredAlone(t, mode)
		})
	}
}

func deadLetteredAlone(t *testing.T, mode string) {
	w := newWorld(t).setUp()
	cases := mistakes()
	insertAll := func(path string) (ids []string) {
		for i, c := range cases {
			key := fmt.Sprintf("%s %d", path, i)
			if i%2 == 0 {
				c.row["ordering_key"] = key
			}
			ids = append(ids, w.insert(c.row), w.insert(row{"payload": fmt.Sprint(i), "ordering_key": c.row["ordering_key"]}))
		}
		return ids
	}
	found := insertAll("found")
	arrived := w.consume(w.queue)
	r := w.run("--mode", mode, "--poll-interval", "100ms")
	w.emptied()
	later := insertAll("later")
	w.emptied()
	w.wantResults(arrived, cases, map[string][]string{"found in the table": found, "inserted later": later})
	arrived.allMarked()
	for _, line := range linesWith(r.logs(), "broker_lost") {
		if !strings.Contains(line, "this process stood still") { // on a slow machine
			t.Error(line)
		}
	}
	// A message that makes the broker close a channel counts as rejected.
	if n := r.metric(`cdc_relay_messages_refused_total{reason="broker_rejected"}`); n != 0 {
		t.Errorf("the broker closed the channel %g times", n)
	}
	if logs := r.logs(); strings.Contains(logs, strings.Repeat("k", 1000)) {
		t.Error("a routing key is logged in full")
	}
}
