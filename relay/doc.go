// Package relay runs one relay: it takes rows from the stream and the sweeps, publishes them, and deletes, retries or
// dead-letters the rows.
//
// Four goroutines do the work, and actors.go starts and stops them. The streamer reads the replication slot, the
// sweeper (fallback.Sweeper.Run) reads the table, the publisher talks to the broker, and the settler writes to the
// table. Each claim of the sweeper has a goroutine of its own. All of them report events to internal/core, which does
// no I/O, and Relay.apply does what the core returns. So the relay is the hub of a wheel, and a message passes through
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
//	                 still owns the slot. The result is Taken, with the message to publish; or Left, and a sweep
//	                 claims the row later; or NoRoom, and streamer.insert waits for room, for a limited time.
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
// RabbitMQ returns the message because no queue is bound. Up to Resolved it is the same way.
//
//	 9  core         Resolved counts an attempt, and decides when to try again. The rows of the ordering key behind it
//	                 stay in the table: the key is blocked until then.
//	11  store        Settle updates attempts, last_error and available_at, on the clock of the database.
//	13  core         Settled forgets the message. For the relay the row is now one of many in the table.
//	14  fallback     Sweeper.Run asks the planner, which knows when the next row is due, and runs the sweep Due then.
//	15  store        FindDue finds row 42. It reads ids, keys and sizes, and locks nothing.
//	16  core         ChooseRows gives the row to a core.Claim, unless memory holds it. The stream may not publish it
//	                 now.
//	17  store        Lock opens a transaction and locks the row with FOR UPDATE SKIP LOCKED, if it may still leave. It
//	                 reads the old xmax: a row that was locked before may have been published. The new xmax says so to
//	                 the next relay.
//	18  core         Claim.Locked marks such a message as a possible duplicate, and gives up the rows that were not
//	                 locked.
//	19  relay        Apply publishes, and steps 7 to 9 follow. The core keeps the answer for the claim.
//	20  fallback     openClaim.finish waits until all messages of the claim have an answer, for four seconds at most.
//	21  store        LockedRows.Commit deletes or updates the rows in the transaction that has locked them.
//	22  core         Claim.Done takes the rows back, and looks up the next rows of their keys. The stream may still be
//	                 behind the lock, and bring such a row again. So the core ignores what committed before the lock.
//
// # When something breaks
//
//	RabbitMQ goes     Relay.StateChanged: the core publishes nothing, and counts no attempt. Streamed rows stay in
//	                  the table.
//	Postgres goes     The streamer opens a new stream, at the current position (streamer.once). What is in memory
//	                  stays there; the settler tries until it can write. After a restart or a failover of the server,
//	                  the core marks the rows whose lock may be forgotten, and ends what belongs to the lost server.
//	this relay dies   The server frees the slot and ends the claims. The next leader marks all rows that are in the
//	                  table when it takes the slot (streamer.lead), and sweeps them.
//	this relay hangs  A standby ends its connection after silence, unless the slot has another owner (standby.go). The
//	                  core of a relay that wakes up publishes nothing before it knows that it still owns the slot.
//	the publisher     unanswered.go finds an outage that the publisher does not report: nothing has an answer.
//	hangs             stuck.go finds a publisher that does not return.
//
// # Where to look
//
// streamer.go connects and streams, streamed.go passes rows on, standby.go and vacancy.go wait for the slot,
// handover.go gives it up, and inspector.go finds a stream that brings nothing. sweeper.go connects package fallback,
// and drain.go ends when it has swept all. apply.go does what the core returns; observer.go tells metrics, traces,
// hooks and the log. settler.go and pending.go write the results. waiting.go has the rows that cannot be written yet,
// unchangeable.go those that the database does not let change, and commits.go reports a COMMIT that hangs. health.go
// tells others how the relay is. See docs/architecture.md for the reasons.
package relay
