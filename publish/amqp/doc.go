// Package amqp publishes to RabbitMQ with publisher confirms.
//
// The goroutine of Publisher.Run dials, and then decides all about one connection: it is the session. Calls of the
// library block: while the socket takes no bytes, or until the broker answers. Helpers carry them and report one type
// of event, happened. They decide nothing.
//
//	            inbox    ┌───────────┐ toWrite
//	Publish ───────────▶ │           ├─────────▶ writer: gives messages to the library
//	                     │  session  │ do
//	confirms, returns ─▶ │ (decides) ├─────────▶ calls: open a channel, look up, probe
//	                     │           │
//	Sink.Deliver ◀────── │           │ ◀──────── happened: written, or what a call found
//	                     └───────────┘
//
// Each exchange has a route with a lane, which is a channel of its own, so that an exception of the channel affects no
// other exchange. An exception belongs to a message if and only if no other was unanswered on the lane. Otherwise all
// leave again, marked, in four parts with a lane each, and so does each part whose lane dies, until the culprit is
// alone. An exchange that never worked starts with one message, and so does each exchange after an outage: while the
// broker answers, each further flight is larger. Messages that may end the connection leave one by one, on a lane
// without others. So do the few others that RabbitMQ may reject by its own rules.
//
// When the session is over, the helpers end first. Then the session reports every message that it has. So each has
// exactly one result, and nothing is sent after the end.
//
//	session.go     the loop, its events, the end; how far the broker has come
//	route.go       sends messages on the lane of their exchange; finds the culprit of an exception
//	lane.go        opens and gives up lanes; what is known of exchanges
//	settle.go      judges answers; returned.go finds the message of a return, classify.go reads exceptions
//	write.go       the writer; uses socket.go
//	call.go        the calls that open a lane or probe the broker
//	places.go      how many messages may wait for slow work
//	nodes.go       connects to one of the nodes
//	missing.go     decides whether a missing queue or exchange is an outage
//	throttle.go    pauses while too many messages wait for confirms; window.go finds how many are best
package amqp
