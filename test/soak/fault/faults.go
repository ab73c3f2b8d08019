package fault

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// All returns every fault.
func All() []Fault {
	return slices.Concat(relayFaults(), postgresFaults(), postgresNetworkFaults(), slotFaults(), rabbitmqFaults())
}

// relayFaults kill relays with SIGKILL, stop them with SIGTERM, and freeze them with SIGSTOP. A standby publishes due
// messages. The broker may close the connections of frozen relays before their confirms are read.
func relayFaults() []Fault {
	return []Fault{
		{Name: "relay-kill-leader", Duplicates: inFlight(1), begin: killLeader},
		{Name: "relay-kill-leader-again-and-again", Duplicates: inFlight(killRounds), begin: killLeaders},
		{Name: "relay-kill-standby", Several: true, Duplicates: inFlight(1), begin: killStandby},
		{Name: "relay-kill-all", Duplicates: allInFlight, begin: killAll},
		{Name: "relay-stop-all", begin: stopAll},
		{Name: "relay-restart-rolling", begin: restartRolling},
		{Name: "relay-freeze-leader", Duplicates: inFlight(1), Unmarked: true, begin: freezeLeader},
		{Name: "relay-freeze-all", Duplicates: inFlight(1), Unmarked: true, begin: freezeAll},
	}
}

// postgresFaults end, freeze or crash Postgres, or delay or fail its statements. A live relay remembers what it has in
// flight, so there are duplicates only if another relay takes the lead.
func postgresFaults() []Fault {
	const read, insert = "SELECT count(*) FROM %s",
		"INSERT INTO %s (routing_key, payload) SELECT 'never', '{}' FROM generate_series(1, 100)"
	return []Fault{
		{Name: "postgres-stop-immediate", Duplicates: ifTakenOver, begin: stopPostgres(services.Immediate)},
		{Name: "postgres-stop-fast", Duplicates: ifTakenOver, begin: stopPostgres(services.Fast)},
		{Name: "postgres-kill", Duplicates: ifTakenOver, begin: killPostgres},
		{Name: "postgres-freeze", Duplicates: ifTakenOver, begin: freezePostgres},
		{Name: "postgres-kill-walsender", Duplicates: ifTakenOver, begin: killWalsender},
		{Name: "postgres-terminate-sessions", Duplicates: ifTakenOver, begin: terminateSessions},
		{
			Name: "postgres-wal-sender-timeout", Duplicates: ifTakenOver,
			begin: setting("wal_sender_timeout", "1s", runWalSenderTimeout.String()),
		},
		{
			// Rows are streamed and stay invisible.
			Name:  "postgres-synchronous-standby-missing",
			begin: setting("synchronous_standby_names", "nonexistent", ""),
		},

		{Name: "postgres-transaction-held", begin: transaction(beginWriting, read)}, // no dead row can be removed
		{
			Name:  "postgres-transaction-held-outbox",
			begin: transaction("BEGIN ISOLATION LEVEL REPEATABLE READ", insert),
		},
		{
			// As by pg_repack and many migrations.
			Name: "postgres-table-locked", begin: transaction("BEGIN", "LOCK TABLE %s IN ACCESS EXCLUSIVE MODE"),
		},
		{Name: "postgres-vacuum-full", begin: repeatedly("VACUUM FULL %s")},
		{Name: "postgres-reindex", begin: repeatedly("REINDEX TABLE %s", "REINDEX TABLE CONCURRENTLY %s")},
		// Another relay publishes rows that the first relay could not delete.
		{Name: "postgres-settle-disk-full", Duplicates: ifTakenOver, begin: diskFull},
	}
}

// postgresNetworkFaults break the network between relays and Postgres. Writers are not affected. A relay that lost only
// connections of its pool keeps the slot.
func postgresNetworkFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	all, replication, pool := postgresWire(""), postgresWire(services.Replication), postgresWire(services.Ordinary)
	return []Fault{
		{Name: "postgres-cut", Duplicates: ifTakenOver, begin: cut(all, 5)},
		{Name: "postgres-cut-replication", Duplicates: ifTakenOver, begin: cut(replication, 5)},
		{Name: "postgres-cut-pool", begin: cut(pool, 5)},
		{Name: "postgres-refuse", Duplicates: ifTakenOver, begin: refuse(all)},
		{Name: "postgres-refuse-replication", Duplicates: ifTakenOver, begin: refuse(replication)},
		{Name: "postgres-refuse-pool", begin: refuse(pool)},
		{Name: "postgres-blackhole", Duplicates: ifTakenOver, begin: blackHole(all)},
		{Name: "postgres-blackhole-upstream", Duplicates: ifTakenOver, begin: blackHole(all, up)},
		{Name: "postgres-blackhole-downstream", Duplicates: ifTakenOver, begin: blackHole(all, down)},
		{Name: "postgres-blackhole-replication", Duplicates: ifTakenOver, begin: blackHole(replication)},
		{Name: "postgres-blackhole-pool", begin: blackHole(pool)},
		{Name: "postgres-late-upstream", Duplicates: ifTakenOver, begin: late(up)},
		{Name: "postgres-late-downstream", Duplicates: ifTakenOver, begin: late(down)},
		{Name: "postgres-late-both-ways", Duplicates: ifTakenOver, begin: late(up, down)},
		{Name: "postgres-late-upstream-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(up))},
		{Name: "postgres-late-downstream-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(down))},
		{Name: "postgres-late-both-ways-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(up, down))},
	}
}

// slotFaults take what streaming needs. Missed rows are in the table. Postgres invalidates a lost slot because of
// max_slot_wal_keep_size.
func slotFaults() []Fault {
	return []Fault{
		{Name: "postgres-slot-dropped", Duplicates: ifTakenOver, begin: dropSlotRepeatedly},
		// The creation of a new one waits for the transaction.
		{Name: "postgres-slot-dropped-behind-transaction", Duplicates: ifTakenOver, begin: dropSlotBehindTransaction},
		{Name: "postgres-slot-lost", begin: loseSlotOfNobody},
		{Name: "postgres-slot-lost-frozen", Duplicates: inFlight(1), Unmarked: true, begin: loseSlotOfFrozen},
		{Name: "postgres-slot-lost-blackhole", Duplicates: ifTakenOver, begin: loseSlotInBlackHole},
		{Name: "postgres-publication-dropped", Duplicates: ifTakenOver, begin: dropPublication},
	}
}

// rabbitmqFaults are those of the network, of the broker's process, what an operator does to it, and the loss of
// destinations. For a missing exchange or permission, the broker closes the channel before it has confirmed everything.
func rabbitmqFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	return []Fault{
		{Name: "rabbitmq-cut", Duplicates: allInFlight, begin: cut(rabbitmqWire, 1)},
		{Name: "rabbitmq-refused", Duplicates: allInFlight, begin: refuse(rabbitmqWire)},
		{Name: "rabbitmq-black-hole", Duplicates: allInFlight, begin: blackHole(rabbitmqWire)},
		{Name: "rabbitmq-black-hole-upstream", Duplicates: allInFlight, begin: blackHole(rabbitmqWire, up)},
		// Messages arrive, their confirms do not.
		{Name: "rabbitmq-black-hole-downstream", Duplicates: allInFlight, begin: blackHole(rabbitmqWire, down)},
		{Name: "rabbitmq-kill", Duplicates: allInFlight, begin: killBroker},
		{Name: "rabbitmq-restart", Duplicates: allInFlight, begin: stopBroker},
		{Name: "rabbitmq-pause", Duplicates: allInFlight, begin: pauseBroker},
		{Name: "rabbitmq-close-relays", Duplicates: allInFlight, begin: closeConnections},
		{Name: "rabbitmq-memory-alarm", begin: raiseAlarm}, // the broker blocks all publishers
		{Name: "rabbitmq-full-queue", Refuses: true, begin: fillQueue},
		{Name: "rabbitmq-permission", Refuses: true, Duplicates: allInFlight, begin: revokePermission},
		{Name: "rabbitmq-login", Duplicates: allInFlight, begin: lockOut},
		{Name: "rabbitmq-exchange-deleted", Refuses: true, Duplicates: allInFlight, begin: deleteExchange},
		{Name: "rabbitmq-vhost-deleted", Duplicates: allInFlight, begin: deleteVHost},
	}
}
