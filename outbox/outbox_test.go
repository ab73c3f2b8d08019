package outbox_test

import (
	"strings"
	"testing"
	"time"
	"unicode"

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

func TestParseShard(t *testing.T) {
	for text, want := range map[string]outbox.Shard{
		"0/1": {}, "0/4": {Index: 0, Of: 4}, "3/4": {Index: 3, Of: 4}, "63/64": {Index: 63, Of: 64},
	} {
		got, err := outbox.ParseShard(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "4", "/", "4/4", "-1/4", "0/0", "0/-1", "0/65", "+0/4", "00/4", "0/4 ", "0/4/1", "a/b", "1/1"} {
		if got, err := outbox.ParseShard(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestShardsOf(t *testing.T) {
	for n, want := range map[int][]outbox.Shard{0: {{}}, 1: {{}}, 2: {{Index: 0, Of: 2}, {Index: 1, Of: 2}}} {
		got := outbox.ShardsOf(n)
		if len(got) != len(want) {
			t.Fatalf("of %d: %v", n, got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("of %d: %v, want %v", n, got, want)
			}
		}
	}
}

func TestTheWholeTableNeedsNoCondition(t *testing.T) {
	whole := outbox.Shard{}
	if whole.Condition("r.") != "true" || whole.Printed() != "" || whole.NameSuffix() != "" || !whole.Whole() {
		t.Errorf("%q %q %q", whole.Condition("r."), whole.Printed(), whole.NameSuffix())
	}
	if suffix := (outbox.Shard{Index: 2, Of: 4}).NameSuffix(); suffix != "_2_of_4" {
		t.Error(suffix)
	}
}

// hostileNames are names that end a line, a comment or a quote, or that a terminal does not show as they are.
func hostileNames() []string {
	return []string{
		"a\n; DROP TABLE x; --", "a\r\\! touch /tmp/x", "a'--", `a"b`, "a$$b", "a\u202eb", `a\b`, "a\\\n\"'", "\x1b[2Ka", "a\u0085b",
		"a\U000e0001b", "é" + strings.Repeat("ü", 30), "\u00a0", "%s%d", ";", "--", "/*", "U&", " ",
	}
}

func TestQuotedNamesAreOneLineAndMeanTheSame(t *testing.T) {
	for _, name := range hostileNames() {
		table := outbox.Table{Schema: name, Name: "x" + name}
		for _, text := range []string{outbox.QuoteIdentifier(name), outbox.QuoteLiteral(name), table.String(), table.Printed(), outbox.Identifier(name)} {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q has characters that are not printable", text)
			}
		}
		for _, text := range []string{table.String(), table.Printed(), table.SQL()} {
			if got, err := outbox.ParseName(text); err != nil || got != table {
				t.Errorf("%q was parsed as %q, %v", text, got, err)
			}
		}
	}
	for _, text := range []string{`U&"a\00"`, `U&"a\zzzz"`, `U&"a\+00000"`, `U&"a`, `U&"\0000"`, `U&"a\d800"`} {
		if got, err := outbox.ParseName(text); err == nil {
			t.Errorf("%s was parsed as %q", text, got)
		}
	}
}

// A defect is found for any publisher, without parsing.
func TestDefectsOfAMessage(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	after := func(d time.Duration) *time.Time { at := now.Add(d); return &at }
	long := strings.Repeat("ü", 128) // 256 bytes
	for name, c := range map[string]struct {
		change func(m *outbox.Message)
		reason outbox.Reason
		says   string
	}{
		"none":              {func(*outbox.Message) {}, "", ""},
		"expires later":     {func(m *outbox.Message) { m.Deadline = after(time.Millisecond) }, "", ""},
		"expires now":       {func(m *outbox.Message) { m.Deadline = after(0) }, outbox.ReasonExpired, "has passed"},
		"expires too soon":  {func(m *outbox.Message) { m.Deadline = after(time.Millisecond - 1) }, outbox.ReasonExpired, "has passed"},
		"the zero time":     {func(m *outbox.Message) { m.Deadline = new(time.Time) }, outbox.ReasonExpired, "0001-01-01"},
		"no routing key":    {func(m *outbox.Message) { m.NoRoutingKey = true }, outbox.ReasonInvalidRow, "routing_key is null"},
		"both payloads":     {func(m *outbox.Message) { m.BothPayloads = true }, outbox.ReasonInvalidRow, "both set"},
		"no payload":        {func(m *outbox.Message) { m.Payload = nil }, outbox.ReasonInvalidRow, "both null"},
		"empty body":        {func(m *outbox.Message) { m.Payload, m.Binary = []byte{}, true }, "", ""},
		"version 0":         {func(m *outbox.Message) { m.SchemaVersion = 0 }, outbox.ReasonInvalidRow, "schema_version is 0"},
		"attempts":          {func(m *outbox.Message) { m.Attempts = -1 }, outbox.ReasonInvalidRow, "attempts is -1"},
		"max_attempts":      {func(m *outbox.Message) { m.MaxAttempts = new(-1) }, outbox.ReasonInvalidRow, "max_attempts is -1"},
		"255 bytes":         {func(m *outbox.Message) { m.RoutingKey, m.Exchange = long[1:], new(long[1:]) }, "", ""},
		"long routing key":  {func(m *outbox.Message) { m.RoutingKey = long }, outbox.ReasonInvalidRouting, "routing_key is longer than 255 bytes"},
		"long exchange":     {func(m *outbox.Message) { m.Exchange = &long }, outbox.ReasonInvalidRouting, "exchange is longer than 255 bytes"},
		"objects":           {func(m *outbox.Message) { m.Headers, m.Properties = []byte(" {"), []byte("{}") }, "", ""},
		"array":             {func(m *outbox.Message) { m.Headers = []byte("[1]") }, outbox.ReasonInvalidHeaders, "not JSON array"},
		"null":              {func(m *outbox.Message) { m.Headers = []byte("null") }, outbox.ReasonInvalidHeaders, "not JSON null"},
		"string":            {func(m *outbox.Message) { m.Properties = []byte(`"a"`) }, outbox.ReasonInvalidProperties, "not JSON string"},
		"number":            {func(m *outbox.Message) { m.Properties = []byte("-1") }, outbox.ReasonInvalidProperties, "not JSON number"},
		"boolean":           {func(m *outbox.Message) { m.Properties = []byte("\ttrue") }, outbox.ReasonInvalidProperties, "not JSON bool"},
		"large headers":     {func(m *outbox.Message) { m.Fits("headers", outbox.MostHeaderBytes+1) }, outbox.ReasonInvalidHeaders, "headers is too large"},
		"large properties":  {func(m *outbox.Message) { m.Fits("properties", 1<<40) }, outbox.ReasonInvalidProperties, "properties is too large"},
		"large exchange":    {func(m *outbox.Message) { m.Fits("exchange", 1<<30) }, outbox.ReasonInvalidRouting, "exchange is too large"},
		"large column":      {func(m *outbox.Message) { m.Fits("tenant", 1<<30) }, outbox.ReasonInvalidHeaders, "tenant is too large"},
		"largest headers":   {func(m *outbox.Message) { m.Fits("headers", outbox.MostHeaderBytes) }, "", ""},
		"unreadable":        {func(m *outbox.Message) { m.Unreadable = "22P05" }, outbox.ReasonInvalidRow, "cannot send the row: 22P05"},
		"large and expired": {func(m *outbox.Message) { m.Deadline = after(-time.Hour); m.Fits("headers", 1<<30) }, outbox.ReasonInvalidHeaders, ""},
	} {
		m := &outbox.Message{Row: outbox.Row{RoutingKey: "r", Payload: []byte("1"), SchemaVersion: 1}}
		c.change(m)
		if reason, detail := m.Defect(now); reason != c.reason || !strings.Contains(detail, c.says) || (reason == "") != (detail == "") {
			t.Errorf("%s: %q, %q", name, reason, detail)
		}
	}
}
