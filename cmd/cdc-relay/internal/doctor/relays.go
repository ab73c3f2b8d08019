package doctor

// Relays are what the relays of the outbox tell.
type Relays struct {
	// Running counts those that work.
	Running int
	// Differences says in which settings they differ, Missed which relays were killed or hang.
	Differences, Missed []string
}

func (r Relays) judge(c chart) {
	for _, text := range r.Differences {
		c.warn("settings", remark("# give all relays of an outbox the same version and settings"), "%s", text)
	}
	for _, text := range r.Missed {
		c.warn("seen", remark("# restart it: its process was killed or hangs, or its machine is gone"), "%s", text)
	}
	if r.Running > 0 && len(r.Differences) == 0 {
		c.ok("settings", "%s, with the same version and settings", counted(r.Running, "relay runs", "relays run"))
	}
}
