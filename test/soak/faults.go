package soak

import (
	"context"
	"slices"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Faults returns every fault.
func Faults() []Fault {
	return slices.Concat(relayFaults(), postgresFaults(), postgresNetworkFaults(), slotFaults(), rabbitmqFaults())
}

// relayFaults kill relays with SIGKILL, stop them with SIGTERM, and freeze them with SIGSTOP. A standby publishes due
// messages. The broker may close the connections of frozen relays before their confirms are read.
func relayFaults() []Fault {
	return []Fault{
		{Name: "relay-kill-leader", duplicates: always, begin: killLeader},
		{Name: "relay-kill-leader-again-and-again", duplicates: always, begin: killLeaders},
		{Name: "relay-kill-standby", several: true, duplicates: always, begin: killStandby},
		{Name: "relay-kill-all", duplicates: always, begin: undone((*world).killAll, (*world).start)},
		{Name: "relay-stop-all", begin: undone((*world).stopAll, (*world).start)},
		{Name: "relay-restart-rolling", begin: restartRolling},
		{Name: "relay-freeze-leader", duplicates: always, unmarked: true, begin: freezeLeader},
		{Name: "relay-freeze-all", duplicates: always, unmarked: true, begin: freezeAll},
	}
}

// postgresFaults end, freeze or crash Postgres, or delay or fail its statements.
func postgresFaults() []Fault {
	kill := func(w *world, ctx context.Context) error { return w.postgres.Kill(ctx) }
	freeze := func(w *world, ctx context.Context) error { return w.postgres.Pause(ctx) }
	resume := func(w *world, ctx context.Context) error { return w.postgres.Resume(ctx) }
	return []Fault{
		{Name: "postgres-stop-immediate", duplicates: ifTakenOver, begin: stopPostgres(services.Immediate)},
		{Name: "postgres-stop-fast", duplicates: ifTakenOver, begin: stopPostgres(services.Fast)},
		{Name: "postgres-kill", duplicates: ifTakenOver, begin: undone(kill, (*world).startPostgres)},
		{Name: "postgres-freeze", duplicates: ifTakenOver, begin: undone(freeze, resume)},
		{Name: "postgres-kill-walsender", duplicates: ifTakenOver, begin: killWalsender},
		{Name: "postgres-terminate-sessions", duplicates: ifTakenOver, begin: terminateSessions},
		{
			Name: "postgres-wal-sender-timeout", duplicates: ifTakenOver,
			begin: setting("wal_sender_timeout", "1s", runWalSenderTimeout.String()),
		},
		{
			// Rows are streamed and stay invisible.
			Name:  "postgres-synchronous-standby-missing",
			begin: setting("synchronous_standby_names", "nonexistent", ""),
		},
		{
			// No dead row can be removed.
			Name: "postgres-transaction-held", begin: openTransaction(beginWriting + "; SELECT FROM " + outboxTable),
		},
		{
			Name: "postgres-transaction-held-outbox",
			begin: openTransaction("BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO " + outboxTable +
				" (routing_key, payload) SELECT 'never', '{}' FROM generate_series(1, 100)"),
		},
		{
			// As by pg_repack and many migrations.
			Name:  "postgres-table-locked",
			begin: openTransaction("BEGIN; LOCK TABLE " + outboxTable + " IN ACCESS EXCLUSIVE MODE"),
		},
		{Name: "postgres-vacuum-full", begin: repeatedly("VACUUM FULL " + outboxTable)},
		{
			Name:  "postgres-reindex",
			begin: repeatedly("REINDEX TABLE "+outboxTable, "REINDEX TABLE CONCURRENTLY "+outboxTable),
		},
		{
			// Another relay publishes rows that the first relay could not delete.
			Name: "postgres-settle-disk-full", duplicates: ifTakenOver,
			begin: undone((*world).fillDisk, (*world).emptyDisk),
		},
	}
}

// postgresNetworkFaults break the network between relays and Postgres. Writers are not affected. A relay that lost only
// connections of its pool keeps the slot.
func postgresNetworkFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	return []Fault{
		{Name: "postgres-cut", duplicates: ifTakenOver, begin: cut(postgresWire, 5)},
		{Name: "postgres-cut-replication", duplicates: ifTakenOver, begin: cut(replicationWire, 5)},
		{Name: "postgres-cut-pool", begin: cut(postgresPoolWire, 5)},
		{Name: "postgres-refuse", duplicates: ifTakenOver, begin: refuse(postgresWire)},
		{Name: "postgres-refuse-replication", duplicates: ifTakenOver, begin: refuse(replicationWire)},
		{Name: "postgres-refuse-pool", begin: refuse(postgresPoolWire)},
		{Name: "postgres-blackhole", duplicates: ifTakenOver, begin: blackHole(postgresWire)},
		{Name: "postgres-blackhole-upstream", duplicates: ifTakenOver, begin: blackHole(postgresWire, up)},
		{Name: "postgres-blackhole-downstream", duplicates: ifTakenOver, begin: blackHole(postgresWire, down)},
		{Name: "postgres-blackhole-replication", duplicates: ifTakenOver, begin: blackHole(replicationWire)},
		{Name: "postgres-blackhole-pool", begin: blackHole(postgresPoolWire)},
		{Name: "postgres-late-upstream", duplicates: ifTakenOver, begin: late(up)},
		{Name: "postgres-late-downstream", duplicates: ifTakenOver, begin: late(down)},
		{Name: "postgres-late-both-ways", duplicates: ifTakenOver, begin: late(up, down)},
		{Name: "postgres-late-upstream-and-terminated", duplicates: ifTakenOver, begin: terminated(late(up))},
		{Name: "postgres-late-downstream-and-terminated", duplicates: ifTakenOver, begin: terminated(late(down))},
		{Name: "postgres-late-both-ways-and-terminated", duplicates: ifTakenOver, begin: terminated(late(up, down))},
	}
}

// slotFaults take what streaming needs. Missed rows are in the table. Postgres invalidates a lost slot because of
// max_slot_wal_keep_size.
func slotFaults() []Fault {
	wake := func(r *relay) error { return r.resume(context.Background()) }
	deafen := func(r *relay) error { r.postgres.Only(services.Replication).BlackHole(); return nil }
	hear := func(r *relay) error { r.postgres.Only(services.Replication).Resume(); return nil }
	return []Fault{
		{Name: "postgres-slot-dropped", duplicates: ifTakenOver, begin: dropSlotRepeatedly},
		// The creation of a new one waits for the transaction.
		{Name: "postgres-slot-dropped-behind-transaction", duplicates: ifTakenOver, begin: dropSlotBehindTransaction},
		{Name: "postgres-slot-lost", begin: undone((*world).stopAndLoseSlot, (*world).start)},
		{
			Name: "postgres-slot-lost-frozen", duplicates: always, unmarked: true,
			begin: loseSlotOf((*relay).pause, wake),
		},
		{Name: "postgres-slot-lost-blackhole", duplicates: ifTakenOver, begin: loseSlotOf(deafen, hear)},
		{Name: "postgres-publication-dropped", duplicates: ifTakenOver, begin: dropPublication},
	}
}

// rabbitmqFaults are those of the network, of the broker's process, what an operator does to it, and the loss of
// destinations. For a missing exchange or permission, the broker closes the channel before it has confirmed everything.
func rabbitmqFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	pause := func(w *world, ctx context.Context) error { return w.rabbitMQ.Pause(ctx) }
	resume := func(w *world, ctx context.Context) error { return w.rabbitMQ.Resume(ctx) }
	alarm := func(w *world, ctx context.Context) error { return w.rabbitMQ.RaiseMemoryAlarm(ctx) }
	calm := func(w *world, ctx context.Context) error { return w.rabbitMQ.ClearMemoryAlarm(ctx) }
	nothing := func(*world, context.Context) error { return nil }
	return []Fault{
		{Name: "rabbitmq-cut", duplicates: always, begin: cut(rabbitmqWire, 1)},
		{Name: "rabbitmq-refused", duplicates: always, begin: refuse(rabbitmqWire)},
		{Name: "rabbitmq-black-hole", duplicates: always, begin: blackHole(rabbitmqWire)},
		{Name: "rabbitmq-black-hole-upstream", duplicates: always, begin: blackHole(rabbitmqWire, up)},
		// Messages arrive, their confirms do not.
		{Name: "rabbitmq-black-hole-downstream", duplicates: always, begin: blackHole(rabbitmqWire, down)},
		{Name: "rabbitmq-kill", duplicates: always, begin: undone((*world).killBroker, (*world).startBroker)},
		{Name: "rabbitmq-restart", duplicates: always, begin: undone((*world).stopBroker, (*world).startBroker)},
		{Name: "rabbitmq-pause", duplicates: always, begin: undone(pause, resume)},
		{Name: "rabbitmq-close-relays", duplicates: always, begin: undone((*world).closeConnections, nothing)},
		{Name: "rabbitmq-memory-alarm", begin: undone(alarm, calm)}, // the broker blocks all publishers
		{Name: "rabbitmq-full-queue", refuses: true, begin: fillQueue},
		{Name: "rabbitmq-permission", refuses: true, duplicates: always, begin: revokePermission},
		{Name: "rabbitmq-login", duplicates: always, begin: undone((*world).lockOut, (*world).letIn)},
		{Name: "rabbitmq-exchange-deleted", refuses: true, duplicates: always, begin: deleteExchange},
		{
			Name: "rabbitmq-vhost-deleted", duplicates: always,
			begin: undone((*world).deleteVHost, (*world).restoreVHost),
		},
	}
}
