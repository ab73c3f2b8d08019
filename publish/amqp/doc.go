// Package amqp publishes to RabbitMQ with publisher confirms.
//
// The goroutine of Publisher.Run dials, and watches one connection at a time (serve.go). Two goroutines work on it, and
// jobs in goroutines of their own. They share a session, and hand over messages and lanes through its mailboxes:
//
//	           in                    starts
//	Publish ───────▶ sender ───────────────────────▶ jobs
//	                 │  ▲ ▲            control        │ │
//	            sent │  │ └───────────────────────────┘ │ sent
//	                 ▼  │ control                       ▼
//	                ┌───┴───────────────────────────────────┐
//	                │                reaper                 ├──▶ Sink.Deliver
//	                └───────────────────────────────────────┘
//
//	from      to        through  what
//	Publish   sender    in       messages
//	sender    reaper    sent     each entry before it is sent; seal: a lane that it uses no more
//	jobs      reaper    sent     the same, for messages of flights
//	jobs      sender    control  their end, with the lane of an exchange or the verdict on its waiting messages
//	reaper    sender    control  a lane that is closed, or on which a message timed out or was rejected; a sealed lane
//	                             without unanswered messages, and those of them that leave again
//	watch     sender    control  that the broker blocked or unblocked the connection, or the throttle gives room
//
// A message that is sent is the reaper's until it has its result. The reaper gives it back only if its lane died with
// several unanswered messages. An exception of a channel belongs to a message only if no other was unanswered on it.
// Otherwise all leave again in two flights, each on a lane of its own, until the culprit is alone. Messages that are
// not sent get their result from the goroutine that has them. When the session is over, the sender stops first, after
// its jobs, and reports the messages that it has. The reaper stops last and reports all others. So each has exactly
// one result, and nothing is sent after the end.
//
// Jobs have their own goroutines because their calls block: until the broker answers (Channel, Confirm,
// ExchangeDeclarePassive, a probe), until the socket takes a large body, and until a flight has its answers. The sender
// never waits for an answer. Only some jobs run at the same time. The messages that wait for a job to begin have a
// share of those in flight. Further ones go back to their rows, so that slow work leaves room for fast work.
//
//	sender.go      takes messages and sends them on the lane of their exchange
//	careful.go     jobs, and which of them run; flight.go sends a flight, and probes before
//	reaper.go      waits for confirms; returned.go finds the message of a return
//	classify.go    tells rejections from outages
//	lane.go        a channel, a message sent on it, and the look-up of its exchange
//	link.go        calls with a time limit, how far the broker has come, the end of the connection; uses socket.go
//	nodes.go       connects to one of the nodes
//	missing.go     decides whether a missing queue or exchange is an outage
//	throttle.go    pauses the sender while too many messages wait for confirms, and after an outage
//	window.go      finds how many are best
package amqp
