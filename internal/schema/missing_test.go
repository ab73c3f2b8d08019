package schema

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestAMistypedTableIsFound(t *testing.T) {
	there := []outbox.Table{{Schema: "public", Name: "outbox"}, {Schema: "billing", Name: "events"}}
	for name, want := range map[string]string{
		"public.outbx": "public.outbox", "public.outbxo": "public.outbox", "public.outbox2": "public.outbox", "publc.outbox": "public.outbox",
		"other.outbox": "public.outbox", "public.outobx": "public.outbox", "public.Outbox": "public.outbox",
		"billing.event": "billing.events", "public.events": "billing.events", "biling.events": "billing.events",
		"public.orders": "", "public.x": "", "billing.outgoing": "",
	} {
		schema, table, _ := strings.Cut(name, ".")
		which, meant := Others(outbox.Table{Schema: schema, Name: table}, there)
		if which != ", which has public.outbox, billing.events" {
			t.Errorf("%s: the database%s", name, which)
		}
		if (want == "") != (meant == "") || !strings.HasPrefix(meant, "# --table "+want) && want != "" {
			t.Errorf("%s: %q, want %s", name, meant, want)
		}
	}
	for _, others := range [][]outbox.Table{nil, {{Schema: "public", Name: "outbox"}}} { // it is there: another fault
		if which, meant := Others(outbox.Table{Schema: "public", Name: "outbox"}, others); which+meant != "" {
			t.Errorf("%q, %q", which, meant)
		}
	}
}
