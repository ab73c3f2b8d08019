// Package amqp publishes to RabbitMQ with publisher confirms.
//
// The goroutine of Publisher.Run dials, and watches one connection at a time (serve.go). Three goroutines work on it.
// They share a session, and hand over messages and lanes through its mailboxes:
//
//	           in          jobs
//	Publish ───────▶ sender ───────▶ isolator
//	                 │  ▲  ◀───────  │    ▲
//	                 │  │   control  │    │
//	            sent │  │ control    │    │ jobs
//	                 │  │       sent │    │
//	                 ▼  │            ▼    │
//	                ┌───┴─────────────────┴──┐
//	                │         reaper         ├──▶ Sink.Deliver
//	                └────────────────────────┘
//
//	from      to        through  what
//	Publish   sender    in       messages
//	sender    isolator  jobs     a message to send alone; an exchange that needs a lane
//	sender    reaper    sent     each entry before it is sent; seal: a lane that it uses no more
//	isolator  reaper    sent     the same, for messages sent alone
//	isolator  sender    control  the lane of an exchange, or the verdict on all of its waiting messages
//	reaper    sender    control  a lane that is closed, or on which a message timed out or was rejected
//	reaper    isolator  jobs     the messages of a dead lane, to send alone before its exchange gets a new lane
//	watch     sender    control  that the broker blocked or unblocked the connection, or answered for the first time
//
// A message that is sent is the reaper's until it has its result. The reaper gives it back only if its lane died. Then
// the isolator sends it alone, and it is the reaper's again. Messages that are not sent get their result from the
// goroutine that has them. When the session is over, the sender and the isolator stop first, and report each message
// that they have. The reaper stops last and reports all others. So each message has exactly one result, and nothing is
// sent after the end.
//
// The isolator has its own goroutine because its calls block: until the broker answers (Channel, Confirm,
// ExchangeDeclarePassive, a probe), until the socket takes a large body, and until a message sent alone has its answer.
// The sender never waits for an answer.
//
//	sender.go      takes messages and sends them on the lane of their exchange
//	isolator.go    takes jobs by their urgency; lookup.go looks up exchanges, alone.go sends alone, probe.go probes
//	reaper.go      waits for confirms; pending.go has the entries, returns.go finds that of a return,
//	               dead_lanes.go collects what the isolator must send again
//	classify.go    tells rejections from outages
//	lane.go        a channel, and a message sent on it
//	link.go        calls with a time limit, and the end of the connection; below it dial.go, socket.go, clock.go
//	nodes.go       which node to connect to
//	missing.go     decides whether a missing queue or exchange is an outage; idle.go checks an idle connection
//	throttle.go    pauses the sender while too many messages wait for confirms; window.go finds how many are best
//	breaker.go     whether messages may leave
package amqp
