package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/store"
)

// allHeads pages through the keys; each page begins with the last key of the one before.
func (f *fixture) allHeads(rows int) []store.Head {
	f.Helper()
	var all []store.Head
	for after := ""; ; {
		heads, _, err := f.store.KeyHeads(f.Context(), after, rows)
		if err != nil {
			f.Fatal(err)
		}
		for _, head := range heads {
			if len(all) == 0 || head.Key != after {
				all = append(all, head)
			}
		}
		if len(heads) < rows {
			return all
		}
		after = heads[len(heads)-1].Key
	}
}

func TestKeyHeadsPageThroughEveryKeyOnceInAnyCollation(t *testing.T) {
	for name, options := range map[string][]string{
		"C":   {"TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"},
		"ICU": {"TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "ICU" && services.SharedPostgres(t).Major() < 15 {
				t.Skip("a database has no ICU locale before Postgres 15")
			}
			f := newFixture(t, options...)
			var want []string
			for i := range 20 {
				for _, key := range []string{"a%d", "A%d", "á%d", " %d", "a-%d", "ключ %d"} {
					want = append(want, fmt.Sprintf(key, i))
				}
			}
			want = append(want, "", "%", `\`, "'")
			f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload)
				SELECT 'r', key, '1' FROM unnest($1::text[]) key, generate_series(1, 3)`, want)
			for _, rows := range []int{2, 7, 1000} {
				var got []string
				for _, head := range f.allHeads(rows) {
					got = append(got, head.Key)
				}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("in pages of %d: %d keys, want %d", rows, len(got), len(want))
				}
			}
		})
	}
}

func TestKeyHeadIsTheOldestRowAndTellsWhetherItMayLeave(t *testing.T) {
	f := newFixture(t)
	f.plain(1)
	want := []store.Head{
		{Key: "", Ready: true}, {Key: "claimed"}, {Key: "newer"}, {Key: "ready", Ready: true},
	}
	want[3].Ref.ID = f.insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'ready')`)
	f.insert(`(routing_key, payload, ordering_key, available_at) VALUES ('r', '1', 'ready', ` + dueFuture + `)`)
	want[1].Ref.ID = f.insert(`(routing_key, payload, ordering_key, available_at) VALUES ('r', '1', 'claimed', ` + duePast + `)`)
	f.insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'claimed')`)
	want[2].Ref.ID = f.insert(`(routing_key, payload, ordering_key, schema_version) VALUES ('r', '1', 'newer', 2)`)
	want[0].Ref.ID = f.insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', '')`)
	for i := range want {
		want[i].Ref.MessageID = one[[16]byte](f, `SELECT message_id FROM outbox WHERE id = $1`, want[i].Ref.ID)
	}
	if got := f.allHeads(10); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRowsOfKeysComeInOrderWithTheirState(t *testing.T) {
	f := newFixture(t)
	f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'r', key, '1'
		FROM generate_series(1, 3), unnest('{b,a,""}'::text[]) key`)
	f.exec(`UPDATE outbox SET available_at = now() WHERE id = 4`) // the second of b
	f.exec(`UPDATE outbox SET schema_version = 2 WHERE id = 8`)   // the third of a
	f.exec(`UPDATE outbox SET possible_duplicate = true, attempts = 2 WHERE id = 7`)
	keys := f.rowsOf(store.Limit{Rows: 3, Bytes: 1 << 20}, "a", "none", "", "b")
	for i, want := range []struct {
		key   string
		ids   []int64
		ready []bool
	}{
		{"a", []int64{2, 5, 8}, []bool{true, true, false}},
		{"none", []int64{}, nil},
		{"", []int64{3, 6, 9}, []bool{true, true, true}},
		{"b", []int64{1, 4, 7}, []bool{true, false, true}},
	} {
		ids := []int64{}
		for j, row := range keys[i].Rows {
			ids = append(ids, row.Message.ID)
			if row.Ready != want.ready[j] || !row.Read || *row.Message.OrderingKey != want.key || string(row.Message.Payload) != "1" {
				t.Errorf("key %q: %+v of %+v", want.key, row, row.Message)
			}
		}
		if keys[i].Key != want.key {
			t.Errorf("key %q in place of %q", keys[i].Key, want.key)
		}
		equal(t, "key "+want.key, ids, want.ids)
	}
	if m := keys[3].Rows[2].Message; !m.PossibleDuplicate || m.Attempts != 2 {
		t.Errorf("%+v", m)
	}
}

func TestRowsOfKeysTellWhereMoreFollow(t *testing.T) {
	f := newFixture(t)
	f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'r', 'k' || n, '1' FROM generate_series(1, 4) n, generate_series(1, n)`)
	for i, key := range f.rowsOf(store.Limit{Rows: 2, Bytes: 1 << 20}, "k1", "k2", "k3", "k4") {
		if len(key.Rows) != min(i+1, 2) {
			t.Errorf("%s: %d rows", key.Key, len(key.Rows))
		}
		if i+1 > 2 && !key.More || i+1 < 2 && key.More {
			t.Errorf("%s: more = %v", key.Key, key.More)
		}
	}
}

func TestRowsOfKeysAreReadOnFromAPlace(t *testing.T) {
	f := newFixture(t)
	f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'r', key, '1'
		FROM generate_series(1, 4), unnest('{a,b}'::text[]) key`)
	keys := f.rowsFrom(store.Limit{Rows: 2, Bytes: 1 << 20},
		store.Place{Key: "a", After: 1}, store.Place{Key: "b", After: store.FromTheOldest}, store.Place{Key: "a", After: 4})
	for i, want := range [][]int64{{2, 3}, {5, 6}, {}} {
		ids := []int64{}
		for _, row := range keys[i].Rows {
			ids = append(ids, row.Message.ID)
		}
		equal(t, fmt.Sprint(keys[i].Place), ids, want)
	}
}

func TestRowsBeyondTheBytesAreNamedAndNotRead(t *testing.T) {
	f := newFixture(t)
	f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload_bytes, headers, properties)
		SELECT 'r', key, decode(repeat('00', 10000), 'hex'), '{"h": 1}', '{"type": "t"}'
		FROM generate_series(1, 2), unnest('{a,b}'::text[]) key`)
	keys := f.rowsOf(store.Limit{Rows: 10, Bytes: 15_000}, "a", "b")
	for i, want := range [][]bool{{true, false}, {true, false}} { // the first of each before the second of any
		for j, row := range keys[i].Rows {
			if row.Read != want[j] || (row.Message.Payload != nil) != want[j] || !row.Ready || row.Message.MessageID == [16]byte{} {
				t.Errorf("%s, row %d: read %v, %d bytes", keys[i].Key, j, row.Read, len(row.Message.Payload))
			}
		}
	}
	if keys := f.rowsOf(store.Limit{Rows: 1, Bytes: 1}, "b", "a"); !keys[0].Rows[0].Read || keys[1].Rows[0].Read {
		t.Error("not exactly the first row was read")
	}
}

func TestKeysThatACollationTakesForEqualDoNoHarm(t *testing.T) {
	f := newFixture(t)
	f.exec(`CREATE COLLATION whatever (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	f.exec(`ALTER TABLE outbox ALTER ordering_key TYPE text COLLATE whatever`)
	f.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) VALUES ('r', 'key', '1'), ('r', 'KEY', '2'), ('r', 'other', '3')`)
	var got []int64
	for _, head := range f.allHeads(10) {
		got = append(got, head.Ref.ID)
	}
	equal(t, "heads", got, []int64{1, 3})
	for _, row := range f.rowsOf(roomy(), "key", "other")[0].Rows {
		got = append(got, row.Message.ID)
	}
	equal(t, "heads and rows of key", got, []int64{1, 3, 1, 2})
}
