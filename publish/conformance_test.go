package publish

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// seen is a message as it arrived downstream.
type seen struct {
	messageID, routingKey, body string
	duplicate                   bool
	expiration                  string // in milliseconds
}

// conforming is one publisher under test.
type conforming struct {
	publisher Publisher
	exchange  string
	key       string
	// arrived returns what came out downstream, after Run has returned.
	arrived func() []seen
}

// syncBuffer is a writer that can be read concurrently.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.FieldsFunc(s.b.String(), func(r rune) bool { return r == '\n' })
}

// linesSeen parses the output of Stdout and Exec.
func linesSeen(t *testing.T, lines []string) []seen {
	t.Helper()
	var all []seen
	for _, text := range lines {
		var l struct {
			MessageID         string          `json:"message_id"`
			RoutingKey        string          `json:"routing_key"`
			PossibleDuplicate bool            `json:"possible_duplicate"`
			Payload           json.RawMessage `json:"payload"`
			PayloadBase64     *string         `json:"payload_base64"`
			Properties        struct{ Expiration json.Number }
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("line %q: %v", text, err)
		}
		body := string(l.Payload)
		if l.PayloadBase64 != nil {
			raw, err := base64.StdEncoding.DecodeString(*l.PayloadBase64)
			if err != nil {
				t.Fatal(err)
			}
			body = string(raw)
		}
		all = append(all, seen{l.MessageID, l.RoutingKey, body, l.PossibleDuplicate, l.Properties.Expiration.String()})
	}
	return all
}

func conformingStdout(t *testing.T) conforming {
	var out syncBuffer
	arrived := func() []seen { return linesSeen(t, out.lines()) }
	return conforming{publisher: NewStdout(StdoutConfig{Writer: &out}), exchange: "x", key: "k", arrived: arrived}
}

func conformingExec(t *testing.T) conforming {
	file := filepath.Join(t.TempDir(), "arrived")
	arrived := func() []seen {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return linesSeen(t, strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }))
	}
	return conforming{publisher: newExec(t, file, 0), exchange: "x", key: "k", arrived: arrived}
}

func conformingAMQP(t *testing.T) conforming {
	url := services.VHost(t)
	a := newAdmin(t, url)
	exchange, queue := services.Name(t)+"_x", services.Name(t)+"_q"
	a.exchange(exchange, "direct", queue, "k")
	p, err := NewAMQP(AMQPConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	arrived := func() []seen {
		var all []seen
		for _, d := range a.drain(queue) {
			mark, _ := d.Headers[outbox.PossibleDuplicateHeader].(bool)
			all = append(all, seen{d.MessageId, d.RoutingKey, string(d.Body), mark, d.Expiration})
		}
		return all
	}
	return conforming{publisher: p, exchange: exchange, key: "k", arrived: arrived}
}

// Tests every publisher against the contract of Publisher.
func TestPublishersFulfilTheContract(t *testing.T) {
	makers := map[string]func(*testing.T) conforming{"stdout": conformingStdout, "exec": conformingExec, "amqp": conformingAMQP}
	suite := map[string]func(*testing.T, conforming){
		"confirmed arrives":              confirmedArrives,
		"impossible harms none":          impossibleHarmsNone,
		"expired is not sent":            expiredIsNotSent,
		"expiration is the smaller time": expirationIsTheSmallerTime,
		"concurrent callers":             concurrentCallers,
		"publish after the end":          publishAfterTheEnd,
		"cancel with messages in flight": cancelWithMessagesInFlight,
		"publish before Run":             publishBeforeRun,
	}
	for name, makeIt := range makers {
		for what, check := range suite {
			t.Run(name+"/"+what, func(t *testing.T) { check(t, makeIt(t)) })
		}
	}
}

func confirmedArrives(t *testing.T, c conforming) {
	var k maker
	messages := k.many(300, c.exchange, c.key)
	binary := k.make(c.exchange, c.key, "\x00\xff binary")
	binary.Binary = true
	again := k.make(c.exchange, c.key, `{"again":true}`)
	again.PossibleDuplicate = true
	again.Headers = []byte(`{"x-possible-duplicate": false, "a": 1}`)
	lying := k.make(c.exchange, c.key, `{"lying":true}`)
	late := k.make(c.exchange, c.key, `{"late":true}`)
	late.TakenAt = time.Now().Add(-2 * outbox.CertainFor)
	messages = append(messages, binary, again, lying, late)

	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.publish(messages...)
	allAre(t, r.awaitResults(t, messages...), outbox.Confirmed)
	r.stop(t)
	if r.err != nil {
		t.Errorf("Run returned %v", r.err)
	}

	arrived := c.arrived()
	if len(arrived) != len(messages) {
		t.Fatalf("%d messages arrived of %d", len(arrived), len(messages))
	}
	for i, m := range messages {
		got := arrived[i]
		body := strings.ReplaceAll(string(m.Payload), `": `, `":`)
		got.body = strings.ReplaceAll(got.body, `": `, `":`)
		want := seen{m.MessageID.String(), m.RoutingKey, body, m.PossibleDuplicate || m == late, ""}
		if got != want {
			t.Errorf("message %d arrived as %+v, want %+v", m.ID, got, want)
		}
	}
}

func impossibleHarmsNone(t *testing.T, c conforming) {
	var k maker
	messages := k.many(60, c.exchange, c.key)
	bad := map[int]outbox.Reason{
		10: outbox.ReasonInvalidHeaders, 20: outbox.ReasonInvalidProperties, 30: outbox.ReasonInvalidRouting,
		40: outbox.ReasonInvalidHeaders,
	}
	messages[10].Headers = []byte(`{"n": 18446744073709551616}`)
	messages[20].Properties = []byte(`{"priority": 256}`)
	messages[30].RoutingKey = strings.Repeat("k", 256)
	messages[40].Headers = []byte(`{"big": "` + strings.Repeat("x", 140_000) + `"}`)

	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.publish(messages...)
	for i, result := range r.awaitResults(t, messages...) {
		want := outbox.Confirmed
		if bad[i] != "" {
			want = outbox.Impossible
		}
		if result.Outcome != want || result.Reason != bad[i] {
			t.Errorf("message %d: %v %s (%s), want %v %s", i, result.Outcome, result.Reason, result.Detail, want, bad[i])
		}
	}
	r.stop(t)
	if n := len(c.arrived()); n != len(messages)-len(bad) {
		t.Errorf("%d messages arrived, want %d", n, len(messages)-len(bad))
	}
}

// expiredIsNotSent: expired messages are reported, and harm no others.
func expiredIsNotSent(t *testing.T, c conforming) {
	var k maker
	messages := k.many(3, c.exchange, c.key)
	messages[0].Deadline = new(time.Now().Add(time.Hour))
	messages[1].Deadline = new(time.Now().Add(-time.Hour))
	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.publish(messages...)
	for i, result := range r.awaitResults(t, messages...) {
		if expired := result.Outcome == outbox.Impossible && result.Reason == outbox.ReasonExpired; expired != (i == 1) {
			t.Errorf("message %d: %v %s (%s)", i, result.Outcome, result.Reason, result.Detail)
		}
	}
	r.stop(t)
	if n := len(c.arrived()); n != 2 {
		t.Errorf("%d messages arrived, want 2", n)
	}
}

// expirationIsTheSmallerTime: of the row's own expiration and the time left.
func expirationIsTheSmallerTime(t *testing.T, c conforming) {
	const day = 24 * time.Hour
	tests := []struct {
		left       time.Duration // 0: never expires
		properties string
		least      time.Duration // of the expiration that arrives; 0: none
		most       time.Duration
	}{
		{0, ``, 0, 0},
		{0, `{"expiration": 60000}`, time.Minute, time.Minute},
		{day, ``, 1, day},
		{day, `{"type": "t"}`, 1, day},
		{day, `{"expiration": 60000}`, time.Minute, time.Minute},
		{day, `{"expiration": "60000"}`, time.Minute, time.Minute},
		{day, `{"expiration": 172800000}`, 1, day},
		{day, `{"expiration": "172800000"}`, 1, day},
		{50 * day, ``, 0, 0}, // more than RabbitMQ's limit
		{50 * day, `{"expiration": 60000}`, time.Minute, time.Minute},
	}
	var k maker
	messages := k.many(len(tests), c.exchange, c.key)
	for i, test := range tests {
		if test.properties != "" {
			messages[i].Properties = []byte(test.properties)
		}
		if test.left > 0 {
			messages[i].Deadline = new(time.Now().Add(test.left))
		}
	}
	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.publish(messages...)
	allAre(t, r.awaitResults(t, messages...), outbox.Confirmed)
	r.stop(t)
	arrived := c.arrived()
	if len(arrived) != len(messages) {
		t.Fatalf("%d messages arrived of %d", len(arrived), len(messages))
	}
	for i, test := range tests {
		got, err := time.ParseDuration(cmp.Or(arrived[i].expiration, "0") + "ms")
		if err != nil || got < test.least || got > test.most {
			t.Errorf("%v left, properties %s: the expiration is %q", test.left, test.properties, arrived[i].expiration)
		}
	}
}

func concurrentCallers(t *testing.T, c conforming) {
	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	const callers, each = 8, 100
	all := make([][]*outbox.Message, callers)
	var wait sync.WaitGroup
	for i := range all {
		k := maker{id: int64(i) * 1000}
		all[i] = k.many(each, c.exchange, c.key)
		wait.Go(func() { r.publish(all[i]...) })
	}
	wait.Wait()
	for _, messages := range all {
		allAre(t, r.awaitResults(t, messages...), outbox.Confirmed)
	}
	r.stop(t)
	if n := len(c.arrived()); n != callers*each {
		t.Errorf("%d messages arrived of %d", n, callers*each)
	}
}

func publishAfterTheEnd(t *testing.T, c conforming) {
	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.stop(t)
	r.awaitPhase(t, Closed)
	var k maker
	m := k.make(c.exchange, c.key, `{}`)
	r.publish(m)
	allAre(t, r.awaitResults(t, m), outbox.NotSent)
}

// cancelWithMessagesInFlight: each message has its result when Run returns, and confirmed messages have arrived.
func cancelWithMessagesInFlight(t *testing.T, c conforming) {
	var k maker
	messages := k.many(1000, c.exchange, c.key)
	r := start(t, c.publisher)
	r.awaitPhase(t, Ready)
	r.publish(messages...)
	r.cancel()
	<-r.done
	r.mu.Lock()
	confirmed := make(map[string]bool)
	for _, m := range messages {
		switch results := r.results[m]; {
		case len(results) != 1:
			t.Errorf("message %d has %d results when Run returns", m.ID, len(results))
		case results[0].Outcome == outbox.Confirmed:
			confirmed[m.MessageID.String()] = true
		}
	}
	r.mu.Unlock()
	for _, s := range c.arrived() {
		delete(confirmed, s.messageID)
	}
	delete(confirmed, "")
	if len(confirmed) > 0 {
		t.Errorf("%d confirmed messages did not arrive", len(confirmed))
	}
}

func publishBeforeRun(t *testing.T, c conforming) {
	var k maker
	m := k.make(c.exchange, c.key, `{}`)
	c.publisher.Publish(m)
	r := start(t, c.publisher)
	allAre(t, r.awaitResults(t, m), outbox.NotSent)
}
