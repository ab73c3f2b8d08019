// Package core decides about each message of the stream and of the sweeps: publish now, queue behind its ordering key,
// or leave in the table. It does no I/O.
//
// Each method of Core and Claim is an event. A method after which something must leave or be written returns an Out.
// One function, relay.apply, does what the Out says. So a message goes round like this:
//
//	stream ── Streamed ──▶ ┌──────┐ ── Out.Publish ──▶ publisher
//	sweeps ── Choose… ───▶ │ core │                        │
//	                       │      │ ◀── Resolved ── result ┘
//	settler ── Settled ──▶ └──────┘ ── Out.Settle ───▶ settler ──▶ table
//
// # A streamed row
//
//	            ┌─ no key, or its key is direct ──▶ in flight ── confirmed ──▶ to be deleted ── Settled ──▶ gone
//	Streamed ──▶├─ a message of its key is in ────▶ queued ── the message before it is confirmed ──▶ in flight
//	            │  flight
//	            └─ otherwise ─────────────────────▶ left in the table, for a claim
//
// A row in flight that is rejected is updated by the settler, and leaves by a claim later. One without an outcome stays
// in the table unchanged, and leaves by a claim at once. In both cases the queue behind it stays in the table too.
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
//	  │  │             toLookUp ◀── nothing of it could be claimed, after a wait ─┐ │
//	  │  │                │ TakeWanted                                            │ │
//	  │  │                ▼                                                       │ │
//	  │  └── no rows ─ inClaim ── Done ───────────────────────────────────────────┴─┤
//	  │      are left     │ its head must not leave yet                             │
//	  │                   ▼                                                         │
//	  │                blocked ── its head is due, or a pass does not see it ───────┘
//	  └─ a pass over all keys finds it ──▶ inClaim, blocked or draining
//
// When a term begins or ends, only keys in claims or with a message in flight are remembered.
//
// # A claim
//
// A Claim knows its rows, the messages that have left, and their answers. Package fallback runs its transaction.
//
//	chosen ── Locked ──▶ open ── End ──▶ being written ── Done ──▶ done
//	  │                  │ ▲                │ an answer is kept      │ kept and later answers are settled
//	  │                  └─┘ Resolved: the next message of the key    │ one by one, as those of streamed rows
//	  └── nothing was locked ── Done ─────────────────────────────────┘
//
// Choosing reserves room in the window and keeps the stream from publishing the same rows. At the lock, the core marks
// the messages and gives up rows that were not locked. The answers of an open claim go to the claim.
//
// The rows of a claim of ChooseRange are known only at the lock. Until then, the stream leaves the rows of the range in
// the table.
//
// # Where to look
//
// core.go has the streamed rows and the window, keys.go and lookup.go the ordering keys, choose.go and claim.go the
// claims, settle.go and retry.go the results. registry.go knows the rows in memory, unseen.go the transactions that are
// not visible yet, passes.go the passes over the table, term.go and lease.go the ownership of the slot, marks.go the
// possible duplicates. view.go is what others see.
package core
