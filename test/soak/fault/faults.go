package fault

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// All returns every fault, also those that are impossible on this machine: see World.Can.
func All() []Fault {
	return slices.Concat(
		relayFaults(), serverFaults(), postgresNetworkFaults(), slotFaults(), tableFaults(),
		rabbitmqNetworkFaults(), rabbitmqFaults(),
	)
}

func relayFaults() []Fault {
	return []Fault{
		{
			Name: "relay-kill-leader", Duplicates: inFlight(1), begin: killLeader,
			About: "SIGKILL of the relay that streams; it is started again after the hold",
		},
		{
			Name: "relay-kill-leader-again-and-again", Duplicates: inFlight(killRounds), begin: killLeaders,
			About: "SIGKILL of the relay that streams, three times; each is started again at once",
		},
		{
			// A standby publishes due messages.
			Name: "relay-kill-standby", Several: true, Duplicates: inFlight(1), begin: killStandby,
			About: "SIGKILL of a standby; it is started again after the hold",
		},
		{
			Name: "relay-kill-all", Duplicates: allInFlight, begin: killAll,
			About: "SIGKILL of every relay at once; they are started again after the hold",
		},
		{
			Name: "relay-stop-all", begin: stopAll,
			About: "SIGTERM to every relay at once; they are started again after the hold",
		},
		{
			Name: "relay-restart-rolling", begin: restartRolling,
			About: "SIGTERM to one relay after the other, each started again before the next one stops",
		},
		{
			Name: "relay-freeze-leader", Duplicates: inFlight(1), Unmarked: true, begin: freezeLeader,
			About: "SIGSTOP of the relay that streams, and SIGCONT after the hold: another one may have taken over",
		},
		{
			// The broker may close the connections of the frozen relays before their confirms are read.
			Name: "relay-freeze-all", Duplicates: inFlight(1), Unmarked: true, begin: freezeAll,
			About: "SIGSTOP of every relay, and SIGCONT after the hold, in random order",
		},
	}
}

// serverFaults end, freeze or crash Postgres. A live relay remembers what it has in flight, so there are duplicates
// only if another relay takes the lead.
func serverFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-stop-immediate", Duplicates: ifTakenOver, begin: stopPostgres(services.Immediate),
			About: "pg_ctl stop -m immediate, which is a crash, and a start after the hold",
		},
		{
			Name: "postgres-stop-fast", Duplicates: ifTakenOver, begin: stopPostgres(services.Fast),
			About: "pg_ctl stop -m fast, which must not wait for a relay, and a start after the hold",
		},
		{
			Name: "postgres-kill", Duplicates: ifTakenOver, begin: killPostgres,
			About: "SIGKILL of every process of the server, and a start after the hold",
		},
		{
			Name: "postgres-freeze", Duplicates: ifTakenOver, begin: freezePostgres,
			About: "SIGSTOP of every process of the server, and SIGCONT after the hold",
		},
		{
			Name: "postgres-kill-walsender", Duplicates: ifTakenOver, begin: killWalsender,
			About: "SIGKILL of the walsender, for which Postgres ends all sessions and recovers",
		},
		{
			Name: "postgres-terminate-sessions", Duplicates: ifTakenOver, begin: terminateSessions,
			About: "pg_terminate_backend of every session of every relay, several times",
		},
		{
			Name: "postgres-wal-sender-timeout", Duplicates: ifTakenOver,
			begin: setting("wal_sender_timeout", "1s", runWalSenderTimeout.String()),
			About: "wal_sender_timeout is lowered to a second while relays stream, and set back",
		},
		{
			Name:  "postgres-synchronous-standby-missing",
			begin: setting("synchronous_standby_names", "nonexistent", ""),
			About: "commits wait for a synchronous standby that does not exist: rows are streamed and stay invisible",
		},
	}
}

// postgresNetworkFaults break the network between relays and Postgres. Writers are not affected. A relay that lost only
// connections of its pool keeps the slot.
func postgresNetworkFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	all, replication, pool := postgresWire(""), postgresWire(services.Replication), postgresWire(services.Ordinary)
	return []Fault{
		{
			Name: "postgres-cut", Duplicates: ifTakenOver, begin: cut(all, 5),
			About: "all connections to Postgres are reset, several times",
		},
		{
			Name: "postgres-cut-replication", Duplicates: ifTakenOver, begin: cut(replication, 5),
			About: "the replication connection is reset, several times",
		},
		{
			Name: "postgres-cut-pool", begin: cut(pool, 5),
			About: "the connections of the pool are reset, several times",
		},
		{
			Name: "postgres-refuse", Duplicates: ifTakenOver, begin: refuse(all),
			About: "connections to Postgres are reset, and new ones are refused",
		},
		{
			Name: "postgres-refuse-replication", Duplicates: ifTakenOver, begin: refuse(replication),
			About: "replication connections are reset, and new ones are refused",
		},
		{
			Name: "postgres-refuse-pool", begin: refuse(pool),
			About: "other connections are reset, and new ones are refused",
		},
		{
			Name: "postgres-blackhole", Duplicates: ifTakenOver, begin: blackHole(all),
			About: "nothing passes between relays and Postgres",
		},
		{
			Name: "postgres-blackhole-upstream", Duplicates: ifTakenOver, begin: blackHole(all, up),
			About: "nothing from the relays reaches Postgres",
		},
		{
			Name: "postgres-blackhole-downstream", Duplicates: ifTakenOver, begin: blackHole(all, down),
			About: "nothing from Postgres reaches the relays",
		},
		{
			Name: "postgres-blackhole-replication", Duplicates: ifTakenOver, begin: blackHole(replication),
			About: "nothing passes on replication connections",
		},
		{
			Name: "postgres-blackhole-pool", begin: blackHole(pool),
			About: "nothing passes except on replication connections",
		},
		{
			Name: "postgres-late-upstream", Duplicates: ifTakenOver, begin: late(up),
			About: "data from the relays reaches Postgres late",
		},
		{
			Name: "postgres-late-downstream", Duplicates: ifTakenOver, begin: late(down),
			About: "data from Postgres reaches the relays late",
		},
		{
			Name: "postgres-late-both-ways", Duplicates: ifTakenOver, begin: late(up, down),
			About: "data in both directions is late",
		},
		{
			Name: "postgres-late-upstream-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(up)),
			About: "data from the relays is late, and Postgres ends the walsender",
		},
		{
			Name: "postgres-late-downstream-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(down)),
			About: "data from Postgres is late, and it ends the walsender",
		},
		{
			Name: "postgres-late-both-ways-and-terminated", Duplicates: ifTakenOver, begin: terminated(late(up, down)),
			About: "data in both directions is late, and Postgres ends the walsender",
		},
	}
}

// slotFaults take what streaming needs. Missed rows are in the table.
func slotFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-slot-dropped", Duplicates: ifTakenOver, begin: dropSlotRepeatedly,
			About: "the slot of the streaming relay is dropped, three times",
		},
		{
			Name: "postgres-slot-dropped-behind-transaction", Duplicates: ifTakenOver, begin: dropSlotBehindTransaction,
			About: "the slot is dropped while a transaction is open: creating a new one waits for it",
		},
		{
			Name: "postgres-slot-lost", begin: loseSlotOfNobody,
			About: "the slot is invalidated through max_slot_wal_keep_size while no relay runs",
		},
		{
			Name: "postgres-slot-lost-frozen", Duplicates: inFlight(1), Unmarked: true, begin: loseSlotOfFrozen,
			About: "the slot is invalidated while its owner is frozen by SIGSTOP",
		},
		{
			Name: "postgres-slot-lost-blackhole", Duplicates: ifTakenOver, begin: loseSlotInBlackHole,
			About: "the slot is invalidated while the stream delivers nothing",
		},
		{
			Name: "postgres-publication-dropped", Duplicates: ifTakenOver, begin: dropPublication,
			About: "the publication is dropped; the relay creates it again, or a person does after the hold",
		},
	}
}

// tableFaults delay or fail statements without ending a connection.
func tableFaults() []Fault {
	return []Fault{
		{
			Name:  "postgres-transaction-held",
			begin: transaction(beginWriting, "SELECT count(*) FROM %s"),
			About: "a transaction that has read and written stays open, so no dead row can be removed",
		},
		{
			Name: "postgres-transaction-held-outbox",
			begin: transaction("BEGIN ISOLATION LEVEL REPEATABLE READ",
				"INSERT INTO %s (routing_key, payload) SELECT 'never', '{}' FROM generate_series(1, 100)"),
			About: "a transaction that has inserted into the outbox stays open, and is then rolled back",
		},
		{
			Name: "postgres-table-locked", begin: transaction("BEGIN", "LOCK TABLE %s IN ACCESS EXCLUSIVE MODE"),
			About: "the outbox is locked exclusively, as by pg_repack and many migrations",
		},
		{
			Name: "postgres-vacuum-full", begin: repeatedly("VACUUM FULL %s"),
			About: "VACUUM FULL of the outbox, repeatedly",
		},
		{
			Name: "postgres-reindex", begin: repeatedly("REINDEX TABLE %s", "REINDEX TABLE CONCURRENTLY %s"),
			About: "REINDEX of the outbox, locking and concurrently, repeatedly",
		},
		{
			// Another relay publishes rows that the first relay could not delete.
			Name: "postgres-settle-disk-full", Duplicates: ifTakenOver, begin: diskFull,
			About: "every UPDATE and DELETE of the outbox fails with 53100, disk_full: " +
				"by a trigger, in place of a full disk",
		},
	}
}

func rabbitmqNetworkFaults() []Fault {
	return []Fault{
		{
			Name: "rabbitmq-cut", Duplicates: allInFlight, begin: cut(rabbitmqWire, 1),
			About: "the AMQP connections of the relays, or of one of them, are reset",
		},
		{
			Name: "rabbitmq-refused", Duplicates: allInFlight, begin: refuse(rabbitmqWire),
			About: "the AMQP connections are reset, and new ones refused",
		},
		{
			Name: "rabbitmq-black-hole", Duplicates: allInFlight, begin: blackHole(rabbitmqWire),
			About: "data in both directions is lost; in long holds also heartbeats",
		},
		{
			Name: "rabbitmq-black-hole-upstream", Duplicates: allInFlight,
			begin: blackHole(rabbitmqWire, services.Upstream),
			About: "data from the relays to the broker is lost",
		},
		{
			Name: "rabbitmq-black-hole-downstream", Duplicates: allInFlight,
			begin: blackHole(rabbitmqWire, services.Downstream),
			About: "data from the broker to the relays is lost: messages arrive, their confirms do not",
		},
	}
}

// rabbitmqFaults are the faults of the broker's process, what an operator does to it, and the loss of destinations. For
// a missing exchange or permission, the broker closes the channel before it has confirmed everything.
func rabbitmqFaults() []Fault {
	return []Fault{
		{
			Name: "rabbitmq-kill", Duplicates: allInFlight, begin: killBroker,
			About: "SIGKILL of the broker; it is started again after the hold",
		},
		{
			Name: "rabbitmq-restart", Duplicates: allInFlight, begin: stopBroker,
			About: "the broker is stopped gracefully and started again after the hold",
		},
		{
			Name: "rabbitmq-pause", Duplicates: allInFlight, begin: pauseBroker,
			About: "SIGSTOP of the broker, SIGCONT after the hold: its connections stay open and nothing answers",
		},
		{
			Name: "rabbitmq-close-relays", Duplicates: allInFlight, begin: closeConnections,
			About: "an operator closes the connections of the relays",
		},
		{
			Name: "rabbitmq-memory-alarm", begin: raiseAlarm,
			About: "the broker is short of memory and blocks all publishers",
		},
		{
			Name: "rabbitmq-full-queue", Refuses: true, begin: fillQueue,
			About: "a queue is full and rejects what is published to it",
		},
		{
			Name: "rabbitmq-permission", Refuses: true, Duplicates: allInFlight, begin: revokePermission,
			About: "the relays may not write to an exchange, or to none, until the permission is granted again",
		},
		{
			Name: "rabbitmq-login", Duplicates: allInFlight, begin: lockOut,
			About: "the relays' password is changed and their connections are closed, until it is changed back",
		},
		{
			Name: "rabbitmq-exchange-deleted", Refuses: true, Duplicates: allInFlight, begin: deleteExchange,
			About: "an exchange is deleted while messages are published to it, and declared again after the hold",
		},
		{
			Name: "rabbitmq-vhost-deleted", Duplicates: allInFlight, begin: deleteVHost,
			About: "the virtual host is deleted while its queues are empty, and created again with everything in it",
		},
	}
}
