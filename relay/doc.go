// Package relay runs one relay: it takes rows from the stream and the sweeps, publishes them, and deletes, retries or
// dead-letters the rows.
//
// Five goroutines do the work, and actors.go starts and stops them. The leader holds the lock of the table, and runs
// the streamer, which reads the replication slot. The sweeper (fallback.Sweeper.Run) reads the table, the publisher
// talks to the broker, and the settler writes to the table. All of them report events to internal/core, which does no
// I/O, and Relay.apply does what the core returns. So the relay is the hub of a wheel, and a message passes through
// it several times.
//
// # One message, from the WAL to the DELETE
//
// A leader streams, RabbitMQ is up, and an application commits row 42 without an ordering key.
//
//	 1  replication  Stream.Run reads a message of the WAL from the socket. It tells the server that it has received
//	                 this position, at once and not when the message is published. So an outage of the broker retains
//	                 no WAL. The row is still in the table.
//	 2  relay        streamer.WAL gets the bytes of one message.
//	 3  decode       Decoder.Decode turns them into an outbox.Message. A row that cannot be decoded is left to the
//	                 sweeps: core.Unread.
//	 4  relay        streamer.insert passes the message to the core.
//	 5  core         Streamed enters row 42 in the registry, counts it in the window, and asks whether this relay
//	                 certainly leads. The result is Taken, with the message to publish; or Left, and a sweep reads
//	                 the row later; or NoRoom, and streamer.insert waits for room, for a limited time.
//	 6  relay        The streamer collects up to 64 messages. Streamer.Idle passes them to apply, when the socket has
//	                 no more bytes. Apply checks for defects that no broker accepts, and publishes.
//	 7  amqp         Publisher.Publish puts the message into a mailbox and returns. The sender encodes it and writes
//	                 it to the lane of its exchange. The reaper waits for the confirm, and matches a return if there
//	                 is one. Then it calls Deliver, exactly once for each message.
//	 8  relay        Deliver counts the result and passes it to the core.
//	 9  core         Resolved decides: delete, retry, dead-letter, or leave in the table. The next message of an
//	                 ordering key leaves now, before the row is deleted.
//	10  relay        Apply puts the decision into pendingRows. The settler collects a batch, for 50 ms at most.
//	11  store        Settle deletes the batch by primary key, in one statement.
//	12  relay        settler.write counts the rows that are gone. Rows that are locked or not yet visible wait in
//	                 waitingRows, and are tried again.
//	13  core         Settled takes row 42 out of the registry and the window, and wakes those who wait for room.
//
// # One retry
//
// RabbitMQ returns the message because no queue is bound. Steps 1 to 8 are the same.
//
//	 9  core         Resolved counts an attempt, and decides when to try again. The rows of the ordering key behind it
//	                 stay in the table: the key is blocked until then.
//	11  store        Settle updates attempts, last_error and available_at, on the clock of the database.
//	13  core         Settled forgets the message. For the relay the row is now one of many in the table.
//	14  fallback     Sweeper.Run asks the planner, which knows when the next row is due, and runs the sweep Due then.
//	15  store        FindDue finds row 42. It reads ids, keys and sizes, and locks nothing.
//	16  core         ChooseRows leaves out what is in memory, and asks for look-ups of ordering keys.
//	17  store        ReadRows reads the row, if it may still leave and nobody holds it: FOR UPDATE SKIP LOCKED, in one
//	                 statement that keeps no lock. It returns a position of the WAL after the row's commit.
//	18  core         Swept enters the row in the registry, and marks it if it could leave before this term. Steps 6 to
//	                 13 follow. The stream may still be behind the position and bring the row again, so the core
//	                 leaves what committed before it to the sweeps.
//
// # When something breaks
//
//	RabbitMQ goes     Relay.StateChanged: the core publishes nothing, and counts no attempt. Streamed rows stay in
//	                  the table.
//	Postgres goes     The lock is gone, and with it the term (leader.once). What is in memory stays there; the settler
//	                  tries until it can write. The relay takes the lock again, or another one does.
//	this relay dies   The server frees the lock. The next leader ends the stream that is left, marks all rows that are
//	                  in the table when its term begins (leader.beginTerm), and sweeps them.
//	this relay hangs  The server ends its session after leaseFor. The core of a relay that wakes up publishes nothing
//	                  before the leader has proved that it still has the lock.
//	the publisher     unanswered.go finds an outage that the publisher does not report: nothing has an answer.
//	hangs             stuck.go finds a publisher that does not return.
//
// # Where to look
//
// lead.go waits for the lock and leads, lock.go has its session, and handover.go decides when to give it up.
// streamer.go connects and streams, streamed.go passes rows on, and watcher.go finds a stream that brings nothing.
// sweeper.go connects package fallback, and drain.go ends when all rows have left. apply.go does what the core returns;
// observer.go tells metrics, traces, hooks and the log. settler.go and pending.go write the results. waiting.go has the
// rows that cannot be written yet, unchangeable.go those that the database does not let change. health.go tells others
// how the relay is. See docs/architecture.md for the reasons.
package relay
