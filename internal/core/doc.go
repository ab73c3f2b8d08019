// Package core decides about each message of the stream and of the sweeps: publish now, queue behind its ordering key,
// or leave in the table. It does no I/O.
//
// Each method of Core is an event. A method after which something must leave or be written returns an Out.
// One function, relay.apply, does what the Out says. So a message goes round like this:
//
//	stream ── Streamed ──▶ ┌──────┐ ── Out.Publish ──▶ publisher
//	sweeps ── Swept… ────▶ │ core │                        │
//	                       │      │ ◀── Resolved ── result ┘
//	settler ── Settled ──▶ └──────┘ ── Out.Settle ───▶ settler ──▶ table
//
// # A streamed row
//
//	            ┌─ no key, or its key is direct ──▶ in flight ── confirmed ──▶ to be deleted ── Settled ──▶ gone
//	Streamed ──▶├─ a message of its key is in ────▶ queued ── the message before it is confirmed ──▶ in flight
//	            │  flight
//	            └─ otherwise ─────────────────────▶ left in the table, for a sweep
//
// A row in flight that is rejected is updated by the settler, and leaves by a sweep later. One without an outcome stays
// in the table unchanged, and leaves by a sweep at once. In both cases the queue behind it stays in the table too.
//
// # An ordering key
//
// The core remembers a key while it has a message in memory or rows in the table. A key that is not remembered is
// direct, unless keys.unknownKeysMayWait says that such keys may have rows in the table.
//
//	not ── Streamed ──▶ direct ── its last message is confirmed ──▶ not remembered
//	remembered            │
//	  │  ▲                │ a row of the key was rejected, or stays in the table
//	  │  │                ▼
//	  │  │             draining ◀───────────────────────────────────────────────────┐
//	  │  │                │ none of its messages is in memory                       │
//	  │  │                ▼                                                         │
//	  │  │             toLookUp ◀── nothing of it could be read, after a wait ────┐ │
//	  │  │                │ TakeWanted                                            │ │
//	  │  │                ▼                                                       │ │
//	  │  └── no rows ─ swept ── its line has left ────────────────────────────────┴─┤
//	  │      are left     │ its head must not leave yet                             │
//	  │                   ▼                                                         │
//	  │                blocked ── its head is due, or a pass does not see it ───────┘
//	  └─ a pass over all keys finds it ──▶ swept, blocked or draining
//
// When a term begins or ends, only keys with a message in flight are remembered.
//
// # A swept row
//
// A sweep asks for Capacity, searches the table, and reports the rows that it has read: Swept for rows without a key,
// ChooseRuns and SweptRuns for the first rows of keys, which form the line of their key. From then on they are like
// streamed rows. Meanwhile the stream may publish one of them, and even have it deleted: Search remembers what leaves
// the memory during a search. Rows with large bodies wait in a line, until NextBody and BodyRead.
//
// # Where to look
//
// core.go has the streamed rows and the window, keys.go and lookup.go the ordering keys, swept.go the
// sweeps, settle.go and retry.go the results. registry.go knows the rows in memory, unseen.go the transactions that are
// not visible yet, passes.go the passes over the table, term.go and lease.go the lead, marks.go the
// possible duplicates. view.go is what others see.
package core
