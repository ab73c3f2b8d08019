package decode_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"runtime"
	"testing"

	"github.com/cdc-relay/cdc-relay/decode"
)

// FuzzDecode feeds any bytes to a decoder that knows the table, and then a valid
// row: whatever came, nothing panics, and memory stays in proportion.
func FuzzDecode(f *testing.F) {
	seeds, err := os.ReadFile(captured)
	if err != nil {
		f.Fatal(err)
	}
	var relation []byte
	for line := range bytes.Lines(seeds) {
		message, err := hex.AppendDecode(nil, bytes.TrimSpace(line))
		if err != nil {
			f.Fatal(err)
		}
		if message[0] == 'R' {
			relation = message
		}
		f.Add(message)
	}
	f.Add(insertRow(row()))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := decode.NewDecoder(table())
		feed(t, d, relation, begin(100, 7))
		before := allocated()
		event, err := d.Decode(data)
		if grown := allocated() - before; grown > 1<<20+uint64(16*len(data)) {
			t.Errorf("%d bytes of input took %d bytes of memory", len(data), grown)
		}
		if err != nil && event != (decode.Event{}) {
			t.Errorf("%+v beside %v", event, err)
		}
		if (event.Kind == decode.Insert) != (event.Message != nil) {
			t.Errorf("%+v", event)
		}
	})
}

func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

func BenchmarkDecodeInsert(b *testing.B) {
	r := row()
	r["id"], r["attempts"], r["schema_version"] = binhex("000000000000002a"), binhex("00000000"), binhex("0001")
	r["message_id"] = binhex("00112233445566778899aabbccddeeff")
	r["created_at"] = binhex("0002e5d57b2c0000")
	r["payload"] = binval(`{"order_id": 42, "lines": [` + string(bytes.Repeat([]byte(`{"sku": "A-1", "n": 1},`), 40)) + `{}]}`)
	r["headers"] = binval("\x01" + `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`)
	message := insertRow(r)
	d := ready(b)
	b.SetBytes(int64(len(message)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Decode(message); err != nil {
			b.Fatal(err)
		}
	}
}
