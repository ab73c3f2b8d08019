package decode_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestBeginInsertAndCommitCarryTheTransaction(t *testing.T) {
	d := decode.NewDecoder(table())
	feed(t, d, relation(ourOID, "public", "outbox", names()...))
	if e := feed(t, d, begin(100, 7)); e.Kind != decode.Begin || e.XID != 7 || e.CommitLSN != 100 {
		t.Errorf("begin: %+v", e)
	}
	e := feed(t, d, insertRow(row()))
	if e.Kind != decode.Insert || e.XID != 7 || e.CommitLSN != 100 || e.Message.ID != 42 || e.Message.XID != 7 {
		t.Errorf("insert: %+v", e)
	}
	if e := feed(t, d, commit(100, 148)); e.Kind != decode.Commit || e.XID != 7 || e.CommitLSN != 100 || e.EndLSN != 148 {
		t.Errorf("commit: %+v", e)
	}
}

func TestOtherMessagesAreIgnored(t *testing.T) {
	d := ready(t)
	for _, kind := range []byte("UDTOYM") {
		if e := feed(t, d, []byte{kind, 1, 2, 3}); e != (decode.Event{}) {
			t.Errorf("%c: %+v", kind, e)
		}
	}
}

// It ends the stream, as no RowError does.
func TestAnInvalidMessageIsAnError(t *testing.T) {
	old := insertRow(row())
	old[5] = 'O'
	for name, message := range map[string][]byte{
		"empty": {}, "of an unknown type": []byte("x"), "of the protocol's version 2": []byte("S\x00"), "zero": {0},
		"of a relation that was not announced": insert(99, text("1")),
		"without columns":                      insert(ourOID),
		"with one column":                      insert(ourOID, text("1")),
		"with the columns of another relation": insert(ourOID, slices.Repeat([]cell{null()}, 15)...),
		"with an old tuple in place of a new":  old,
		"with a column of an unknown kind":     insertRow(with("headers", cell{kind: 'x'})),
	} {
		e, err := ready(t).Decode(message)
		var row *decode.RowError
		if err == nil || errors.As(err, &row) {
			t.Errorf("a message %s: %+v, %v", name, e, err)
		}
	}
}

func TestRowsOfOtherTablesAreIgnored(t *testing.T) {
	for _, other := range []outbox.Table{
		{Schema: "other", Name: "outbox"}, {Schema: "public", Name: "orders"}, {Schema: "", Name: "outbox"}, // an empty schema is pg_catalog
	} {
		d := ready(t)
		feed(t, d, relation(5, other.Schema, other.Name, "id"))
		if e := feed(t, d, insert(5, text("no number"))); e.Kind != decode.Ignored {
			t.Errorf("%v: %+v", other, e)
		}
	}
}

func TestSeveralRelationsOfTheTableAreRead(t *testing.T) {
	d := ready(t)
	feed(t, d, relation(ourOID+1, "public", "outbox", names()...)) // created again under the same name
	message := insertRow(row())
	message[4]++
	if e := feed(t, d, message); e.Kind != decode.Insert {
		t.Errorf("%+v", e)
	}
}

func TestRowsOfARenamedTableAreIgnored(t *testing.T) {
	d := ready(t)
	feed(t, d, relation(ourOID, "public", "outbox_old", names()...))
	if e := feed(t, d, insertRow(row())); e.Kind != decode.Ignored {
		t.Errorf("%+v", e)
	}
}

func TestColumnsAreFoundByNameAfterEachChange(t *testing.T) {
	d := ready(t)
	moved := append([]string{"added"}, names()...)
	slices.Reverse(moved)
	feed(t, d, relation(ourOID, "public", "outbox", moved...))
	var cells []cell
	for _, name := range moved {
		if c, ok := row()[name]; ok {
			cells = append(cells, c)
		} else {
			cells = append(cells, text("of no concern"))
		}
	}
	m := feed(t, d, insert(ourOID, cells...)).Message
	if m == nil || m.ID != 42 || m.RoutingKey != "orders" || string(m.Payload) != `{"a": 1}` {
		t.Errorf("%+v", m)
	}
}

func TestMissingColumnsStopTheStreamAndAreNamed(t *testing.T) {
	for _, name := range names() {
		d := ready(t)
		renamed := names()
		renamed[slices.Index(renamed, name)] = name + "_renamed"
		dropped := slices.DeleteFunc(names(), func(s string) bool { return s == name })
		for _, columns := range [][]string{renamed, dropped, append(dropped, dropped[0])} {
			_, err := d.Decode(relation(ourOID, "public", "outbox", columns...))
			var missing *decode.MissingColumnError
			if !errors.As(err, &missing) {
				t.Fatalf("%v: err = %v", columns, err)
			}
			if !slices.Equal(missing.Columns, []string{name}) || missing.Table != table() {
				t.Errorf("%+v", missing)
			}
			if !strings.Contains(err.Error(), name) || missing.Hint() == "" {
				t.Errorf("%v: %s", err, missing.Hint())
			}
		}
	}
}

func TestTruncatedMessageIsAnError(t *testing.T) {
	for _, message := range [][]byte{
		relation(ourOID, "public", "outbox", names()...), relation(5, "public", "other", "a", "b"),
		begin(100, 7), commit(100, 148), insertRow(row()), insertRow(with("payload", binval("[]"))),
	} {
		for n := range message {
			d := ready(t)
			if e, err := d.Decode(message[:n:n]); err == nil {
				t.Errorf("%q cut after %d bytes: %+v without an error", message, n, e)
			} else if e != (decode.Event{}) {
				t.Errorf("%q cut after %d bytes: %+v beside an error", message, n, e)
			}
			feed(t, d, insertRow(row())) // the decoder still works
		}
	}
}

// It allocates nothing.
func TestLengthBeyondTheMessageIsAnError(t *testing.T) {
	message := insertRow(with("payload_bytes", binval("abcd")))
	copy(message[len(message)-8:], "\xff\xff\xff\xff")
	d := ready(t)
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Decode(message); err == nil {
				b.Fatal("no error")
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 4096 {
		t.Errorf("%d bytes allocated", allocated)
	}
}

func TestMessageDoesNotReferToTheReadBuffer(t *testing.T) {
	r := with("headers", text(`{"h": 1}`))
	r["properties"], r["ordering_key"], r["exchange"] = binval("\x01{}"), text("key"), text("exchange")
	wire := insertRow(r)
	m := feed(t, ready(t), wire).Message
	for i := range wire {
		wire[i] = 0xff
	}
	if got := string(m.Payload) + string(m.Headers) + string(m.Properties) + *m.OrderingKey + *m.Exchange + m.RoutingKey; got !=
		`{"a": 1}{"h": 1}{}keyexchangeorders` {
		t.Errorf("got %q", got)
	}
}

func TestCommitTimeIsThatOfTheCurrentTransaction(t *testing.T) {
	d := ready(t)
	message := begin(100, 7)
	binary.BigEndian.PutUint64(message[9:], 1_000_001) // microseconds after 2000-01-01
	feed(t, d, message)
	if want := time.Date(2000, 1, 1, 0, 0, 1, 1000, time.UTC); !d.CommittedAt().Equal(want) {
		t.Errorf("got %s, want %s", d.CommittedAt(), want)
	}
}
