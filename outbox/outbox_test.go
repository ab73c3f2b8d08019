package outbox_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestParseTable(t *testing.T) {
	for _, test := range []struct {
		text string
		want outbox.Table
		err  string
	}{
		{"outbox", outbox.Table{Schema: "public", Name: "outbox"}, ""},
		{"Shop.OutBox", outbox.Table{Schema: "shop", Name: "outbox"}, ""},
		{`"My Schema"."Out.Box"`, outbox.Table{Schema: "My Schema", Name: "Out.Box"}, ""},
		{`"a""b".c$1`, outbox.Table{Schema: `a"b`, Name: "c$1"}, ""},
		{"größe", outbox.Table{Schema: "public", Name: "größe"}, ""},
		{"", outbox.Table{}, "empty"},
		{"a.", outbox.Table{}, "empty"},
		{".a", outbox.Table{}, "empty"},
		{`""`, outbox.Table{}, "empty"},
		{"a.b.c", outbox.Table{}, "schema.name"},
		{`"a`, outbox.Table{}, "not closed"},
		{"my table", outbox.Table{}, "double quotes"},
		{"a;b", outbox.Table{}, "double quotes"},
		{strings.Repeat("x", 64), outbox.Table{}, "longer than 63 bytes"},
	} {
		got, err := outbox.ParseTable(test.text)
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: got %v, %v, want an error with %q", test.text, got, err, test.err)
			}
		case err != nil || got != test.want:
			t.Errorf("%q: got %+v, %v, want %+v", test.text, got, err, test.want)
		}
	}
}

func TestParseTableReadsTableString(t *testing.T) {
	for _, table := range []outbox.Table{
		{Schema: "public", Name: "outbox"},
		{Schema: "My Schema", Name: "Out.Box"},
		{Schema: `a"b`, Name: "1st"},
		{Schema: "größe", Name: "c$"},
	} {
		for _, text := range []string{table.String(), table.SQL()} {
			if got, err := outbox.ParseTable(text); err != nil || got != table {
				t.Errorf("%s: got %+v, %v, want %+v", text, got, err, table)
			}
		}
	}
}

func FuzzParseTable(f *testing.F) {
	for _, seed := range []string{"outbox", `"a""b"."c"`, "A.b", `"`, "a.b.c", "ü"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		table, err := outbox.ParseTable(text)
		if err != nil {
			return
		}
		if again, err := outbox.ParseTable(table.SQL()); err != nil || again != table {
			t.Errorf("%q: %+v reads back as %+v, %v", text, table, again, err)
		}
	})
}

func TestUUIDRoundTrip(t *testing.T) {
	const text = "0123abcd-4567-89ab-cdef-00112233ffee"
	u, err := outbox.ParseUUID([]byte(text))
	if err != nil || u.String() != text {
		t.Errorf("got %s, %v", u, err)
	}
	for _, bad := range []string{"", text[1:], strings.ReplaceAll(text, "-", "0"), strings.Replace(text, "a", "g", 1)} {
		if _, err := outbox.ParseUUID([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSizeCountsAllVariableFields(t *testing.T) {
	exchange, key := strings.Repeat("x", 10_000), strings.Repeat("k", 20_000)
	m := outbox.Message{
		Row: outbox.Row{
			Payload:     make([]byte, 1000),
			Headers:     make([]byte, 100),
			Properties:  make([]byte, 10),
			RoutingKey:  "k",
			Exchange:    &exchange,
			OrderingKey: &key,
		},
	}
	if got := m.Size(); got < 31_111 || got > 32_111 {
		t.Errorf("got %d", got)
	}
}
