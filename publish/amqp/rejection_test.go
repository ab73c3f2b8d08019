package amqp

import (
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func checkRejected(t *testing.T, result outbox.Result, reason outbox.Reason) {
	t.Helper()
	if result.Outcome != outbox.Rejected || result.Reason != reason {
		t.Errorf("message %d: %v %s (%s), want rejected %s",
			result.Message.ID, result.Outcome, result.Reason, result.Detail, reason)
	}
	if result.Detail == "" {
		t.Errorf("message %d: no detail", result.Message.ID)
	}
}

// Only the content tells them apart: a return for the wrong one would lose a message. The returns come before all
// confirms.
func TestMessagesWithTheSameMessageIDGetTheirOwnAnswers(t *testing.T) {
	u, a, q := withQueue(t)
	frames, u := behindFrames(t, u)
	frames.LateConfirms(200 * time.Millisecond)
	x := services.Name(t) + "_h"
	must(t, a.channel.ExchangeDeclare(x, "headers", true, false, false, false, nil))
	must(t, a.channel.QueueBind(q, "", x, false, amqp091.Table{"to": "q"}))
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	routed, lost := k.Many(11, x, "k"), k.Many(11, x, "k")
	for i, column := range []string{
		`"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6`, `"empty": [], "table": {}, "g": 1, "h": 2, "i": 3`, `"BCC": ["nowhere"], "CC": ["nowhere either"]`, `"timestamp_in_ms": 5`,
		`"deep": [{"a": [1.5, null, true]}, "b"]`,
		`{"type": "t", "app_id": "a", "correlation_id": "c", "content_encoding": "gzip"}`, `{"reply_to": "r"}`,
		`{"priority": 0}`, `{"priority": 9}`, `{"expiration": 60000}`, `{"delivery_mode": 1, "content_type": "text/plain"}`,
	} {
		lost[i].MessageID = routed[i].MessageID
		routed[i].Headers, lost[i].Headers = []byte(`{"to": "q"}`), []byte(`{"to": "nobody"}`)
		if column[0] == '{' {
			routed[i].Properties, lost[i].Properties = []byte(column), []byte(column)
		} else {
			routed[i].Headers, lost[i].Headers = []byte(`{"to": "q", `+column+`}`), []byte(`{"to": "nobody", `+column+`}`)
		}
		if i%3 == 0 { // which becomes its expiration
			lost[i].Deadline = new(time.Now().Add(time.Hour))
			routed[i].Deadline = lost[i].Deadline
		}
	}
	for i := range routed {
		if i%2 == 0 {
			r.PublishAll(routed[i], lost[i])
		} else {
			r.PublishAll(lost[i], routed[i])
		}
	}
	publishtest.AllAre(t, r.AwaitResults(t, routed...), outbox.Confirmed)
	for _, result := range r.AwaitResults(t, lost...) {
		checkRejected(t, result, outbox.ReasonUnroutable)
	}
}

// Something on the way back changes bodies. The message must not look confirmed.
func TestAReturnThatWasChangedCountsByItsMessageID(t *testing.T) {
	frames, u := behindFrames(t, services.VHost(t))
	frames.Rule(func(frame []byte) time.Duration {
		if frame[0] == 3 { // a body
			frame[7] = 'x'
		}
		return 0
	})
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	lost := k.Make("", "nowhere", `{}`)
	checkRejected(t, r.Answers(t, lost)[0], outbox.ReasonUnroutable)
}

// An ORM may send the nil UUID with each row. Finding the message of a return does not depend on how many are in flight.
func TestManyUnroutableRowsOfOneMessageIDDelayNobody(t *testing.T) {
	a, q, r := publishing(t)
	x := services.Name(t) + "_x"
	a.exchange(x, "fanout", "", "")
	var k publishtest.Maker
	f := startFlow(r, &publishtest.Maker{ID: 1 << 30}, "", q, 50)
	var took []time.Duration
	for _, same := range []bool{false, false, true} { // the first time only opens the lane
		unroutable := k.Many(4500, x, "k")
		for _, m := range unroutable {
			m.Payload, m.Headers = []byte(`{}`), fmt.Appendf(nil, `{"a": %d, "b": [1, {"c": 2}], "d": []}`, m.ID)
			if same {
				m.MessageID = outbox.UUID{}
			}
		}
		began := time.Now()
		for some := range slices.Chunk(unroutable, 1500) {
			for _, result := range r.Answers(t, some...) {
				checkRejected(t, result, outbox.ReasonUnroutable)
			}
		}
		took = append(took, time.Since(began))
	}
	publishtest.AllAre(t, f.end(t), outbox.Confirmed)
	t.Logf("took %v", took)
	if took[2] > 5*took[1]+time.Second {
		t.Errorf("rows of one message_id took %v, and others %v", took[2], took[1])
	}
}

// Messages that may have reached it are Unknown or Confirmed. Later ones are rejected, and other exchanges are
// unaffected.
func TestAnExchangeMayBeDeletedDuringPublishing(t *testing.T) {
	u, a, x, q := withExchange(t, "fanout", "")
	other := a.queue(services.Name(t)+"_o", nil)
	r := startAMQP(t, Config{URL: u})
	var k publishtest.Maker
	before := k.Many(50, x, "k")
	publishtest.AllAre(t, r.Answers(t, before...), outbox.Confirmed)

	around, neighbours := k.Many(900, x, "k"), k.Many(900, "", other)
	for i := range around[:450] {
		r.PublishAll(around[i], neighbours[i])
	}
	must(t, a.channel.ExchangeDelete(x, false, false))
	for i := 450; i < 900; i++ {
		r.PublishAll(around[i], neighbours[i])
	}
	publishtest.AllAre(t, r.AwaitResults(t, neighbours...), outbox.Confirmed)
	results := r.AwaitResults(t, around...)
	for _, result := range results {
		switch result.Outcome {
		case outbox.Confirmed, outbox.Unknown:
		case outbox.Rejected:
			if result.Reason != outbox.ReasonUnroutable { // the broker removes the bindings before the exchange
				checkRejected(t, result, outbox.ReasonNoExchange)
			}
		default:
			t.Errorf("message %d: %+v", result.Message.ID, result)
		}
	}
	last := k.Make(x, "k", `{}`)
	checkRejected(t, r.Answers(t, last)[0], outbox.ReasonNoExchange)
	checkArrived(t, results, a.drain(q))
	if n := len(a.drain(other)); n != len(neighbours) {
		t.Errorf("%d neighbours arrived of %d", n, len(neighbours))
	}
}

// limitedUser creates a user who may write only to exchanges that match the pattern.
func limitedUser(t *testing.T, vhostURL, write string) string {
	t.Helper()
	broker := services.SharedRabbitMQ(t)
	u, err := url.Parse(vhostURL)
	must(t, err)
	user, vhost := services.Name(t), strings.TrimPrefix(u.Path, "/")
	if broker.ManagementURL() == "" {
		t.Skip("users can only be created through the management API")
	}
	must(t, broker.AddUser(t.Context(), user, "secret"))
	must(t, broker.Permit(t.Context(), vhost, user, services.Permissions{Write: write}))
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

// Nobody may publish to an internal exchange.
func TestAMissingPermissionIsARejection(t *testing.T) {
	u := services.VHost(t)
	a := newAdmin(t, u)
	open, shut := services.Name(t)+"_open", services.Name(t)+"_shut"
	q, qShut := services.Name(t)+"_q", services.Name(t)+"_q2"
	a.exchange(open, "fanout", q, "")
	a.exchange(shut, "fanout", qShut, "")
	internal := services.Name(t) + "_internal_open"
	must(t, a.channel.ExchangeDeclare(internal, "fanout", true, false, true, false, nil))
	r := startAMQP(t, Config{URL: limitedUser(t, u, ".*_open$")})
	var k publishtest.Maker
	good, bad := k.Many(300, open, "k"), append(k.Many(200, shut, "k"), k.Many(100, internal, "k")...)
	for i := range good {
		r.PublishAll(good[i], bad[i])
	}
	publishtest.AllAre(t, r.AwaitResults(t, good...), outbox.Confirmed)
	for _, result := range r.AwaitResults(t, bad...) {
		checkRejected(t, result, outbox.ReasonAccessRefused)
	}
	if n := len(a.drain(q)); n != len(good) {
		t.Errorf("%d messages arrived, want %d", n, len(good))
	}
	if n := len(a.drain(qShut)); n != 0 {
		t.Errorf("%d messages arrived, want none", n)
	}
}

// The broker closes the channel for it; no other message is harmed.
func TestAForeignUserIDRejectsOnlyItsMessage(t *testing.T) {
	a, q, r := publishing(t)
	var k publishtest.Maker
	messages := k.Many(200, "", q)
	for i := 3; i < len(messages); i += 40 {
		messages[i].Properties = []byte(`{"user_id": "somebody-else"}`)
	}
	messages[5].Properties = []byte(`{"user_id": "guest"}`)
	messages[6].Headers = []byte(`{"CC": ["` + q + `"]}`)
	for i, result := range r.Answers(t, messages...) {
		switch {
		case i%40 != 3:
			publishtest.AllAre(t, []outbox.Result{result}, outbox.Confirmed)
		case result.Outcome != outbox.Impossible || result.Reason != outbox.ReasonInvalidProperties:
			t.Errorf("message %d: %+v", i, result)
		}
	}
	arrived := a.drain(q)
	if len(arrived) != 195 { // both keys of message 6 lead to one queue, which gets it once
		t.Errorf("%d messages arrived, want 195", len(arrived))
	}
	for _, d := range arrived {
		if d.Headers[outbox.PossibleDuplicateHeader] != nil {
			t.Errorf("%s is marked as a duplicate", d.MessageId)
		}
	}
}

func TestTheLargestHeadersArrive(t *testing.T) {
	a, q, r := publishing(t)
	const frameMax = 131_072 // the default of RabbitMQ
	lim := wire.Limits{FrameMax: frameMax}
	var k publishtest.Maker
	m := k.Make("", q, `{}`)
	m.PossibleDuplicate = true
	fits := func(n int) bool {
		m.Headers = fmt.Appendf(nil, `{"h": %q}`, strings.Repeat("x", n))
		_, err := wire.Encode(m, lim, true)
		return err == nil
	}
	size := sort.Search(frameMax, func(n int) bool { return !fits(n) }) - 1
	if size < 130_000 || !fits(size) {
		t.Fatalf("%d bytes of headers fit", size)
	}
	over := k.Make("", q, `{}`)
	over.Headers = fmt.Appendf(nil, `{"h": %q}`, strings.Repeat("x", size+1))
	neighbours := k.Many(20, "", q)
	r.PublishAll(neighbours[:10]...)
	r.PublishAll(m, over)
	r.PublishAll(neighbours[10:]...)
	publishtest.AllAre(t, r.AwaitResults(t, append(neighbours, m)...), outbox.Confirmed)
	if result := r.AwaitResults(t, over)[0]; result.Reason != outbox.ReasonInvalidHeaders {
		t.Errorf("one byte more: %+v", result)
	}
	if n := len(a.drain(q)); n != 21 {
		t.Errorf("%d messages arrived, want 21", n)
	}
}

// Each exchange is looked up once: not again after its lane was given up, nor on the next connection. An exchange with
// many messages gets a lane with more room.
func TestMoreExchangesThanLanesArePublished(t *testing.T) {
	u, a, q := withQueue(t)
	names := make([]string, mostLanes+20)
	for i := range names {
		names[i] = fmt.Sprintf("%s_%d", q, i)
		a.exchange(names[i], "fanout", q, "")
	}
	sent := newMethods(t)
	proxy := services.NewProxy(t, sent.Addr())
	r := startAMQP(t, Config{URL: withHost(t, u, proxy.Addr())})
	var k publishtest.Maker
	published := 0
	for range 3 {
		var messages []*outbox.Message
		for _, name := range names {
			messages = append(messages, k.Many(3, name, "k")...)
		}
		messages = append(messages, k.Many(1000, names[len(names)-1], "k")...)
		r.publishUntilConfirmed(t, messages...)
		published += len(messages)
		r.reconnect(t, proxy)
	}
	if n := len(a.drain(q)); n < published {
		t.Errorf("%d messages arrived of %d", n, published)
	}
	if n := sent.count(exchangeDeclare); n > len(names)+mostOpening {
		t.Errorf("%d look-ups of %d exchanges", n, len(names))
	}
}

// The library drops returns for which a lane has no room, and their messages would look confirmed.
func TestNoReturnOfANarrowLaneIsLost(t *testing.T) {
	u, a, q := withQueue(t)
	frames, u := behindFrames(t, u)
	r := startAMQP(t, Config{URL: u, MaxInFlight: 400})
	var k publishtest.Maker
	last := ""
	for i := range mostWide + 1 {
		last = fmt.Sprintf("%s_%d", q, i)
		a.exchange(last, "direct", q, "k")
		r.publishUntilConfirmed(t, k.Many(1, last, "k")...)
	}
	for range 10 { // until its slow start is over
		r.publishUntilConfirmed(t, k.Many(200, last, "k")...)
	}
	frames.LateConfirms(300 * time.Millisecond) // all returns come before
	lost := k.Many(200, last, "nowhere")
	for _, result := range r.Answers(t, lost...) {
		checkRejected(t, result, outbox.ReasonUnroutable)
	}
}

// RabbitMQ accepts a user_id of somebody else from a user with the tag impersonator. CC and BCC are ordinary headers.
func TestCCAndUserIDsOfOthersAreOrdinary(t *testing.T) {
	u, _, q := withQueue(t)
	u = limitedUser(t, u, ".*")
	parsed, err := url.Parse(u)
	must(t, err)
	if out, err := services.SharedRabbitMQ(t).Ctl(t.Context(), "set_user_tags", parsed.User.Username(), "impersonator"); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	sent := newMethods(t)
	r := startAMQP(t, Config{URL: withHost(t, u, sent.Addr())})
	var k publishtest.Maker
	messages := k.Many(400, "", q)
	for i, m := range messages {
		m.Headers = []byte([]string{`{"CC": ["nowhere"]}`, `{"BCC": ["nowhere"]}`}[i%2])
	}
	publishtest.AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
	if n := sent.count(channelOpen); n != 1 {
		t.Errorf("%d channels were opened for CC and BCC, want 1", n)
	}
	messages = k.Many(400, "", q)
	for i, m := range messages {
		m.Properties = fmt.Appendf(nil, `{"user_id": "user %d"}`, i)
	}
	r.publishUntilConfirmed(t, messages...)
	if n := sent.count(channelOpen); n > 2 {
		t.Errorf("%d channels were opened for user_ids, want one lane, and one for the first", n)
	}
}
