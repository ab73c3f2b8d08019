package doctor

import (
	"maps"
	"slices"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Relays are what the relays of the outbox tell.
type Relays struct {
	// Running counts those that work.
	Running int
	// Differences says in which settings they differ, Missed which relays were killed or hang.
	Differences, Missed []string
	// NotStreaming is a relay that works and cannot stream; "": none. Detail says why, and Fix what to do.
	NotStreaming, Detail, Fix string
	// Failing says which relays cannot work on the tables, and maps that to what to do.
	Failing map[string]string
	// Mute are roles whose relays run and may not tell it.
	Mute []string
}

func (r Relays) judge(c chart, table outbox.Table) {
	for _, text := range r.Differences {
		c.warn("settings", remark("# give all relays of an outbox the same version and settings"), "%s", text)
	}
	for _, text := range slices.Sorted(maps.Keys(r.Failing)) {
		c.wrong("works", hintFix(r.Failing[text]), "%s", text)
	}
	for _, text := range r.Missed {
		c.warn("seen", remark("# %s", show.Restart), "%s", text)
	}
	for _, role := range r.Mute {
		c.warn("seen", grant(grants.Report(table), quote(role)),
			"a relay of role %q runs, and may not write to table %s: other programs do not see what it does",
			role, migrations.RelayTable(table))
	}
	if r.Running > 0 && len(r.Differences) == 0 {
		c.ok("settings", "%s, with the same version and settings", counted(r.Running, "relay runs", "relays run"))
	}
}
