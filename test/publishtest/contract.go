package publishtest

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
)

// Seen is a message as it arrived downstream.
type Seen struct {
	MessageID, RoutingKey, Body string
	Duplicate                   bool
	Expiration                  string // in milliseconds
}

// Subject is one publisher under test.
type Subject struct {
	Publisher publish.Publisher
	// Messages with this exchange and routing key arrive.
	Exchange, Key string
	// Nowhere is a routing key of the exchange with which messages reach nobody; "": there is none.
	Nowhere string
	// Arrived returns what came out downstream, after Run has returned.
	Arrived func() []Seen
}

// Buffer is a writer that can be read concurrently.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (s *Buffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// Lines returns the lines that were written.
func (s *Buffer) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.FieldsFunc(s.b.String(), func(r rune) bool { return r == '\n' })
}

// LinesSeen parses the output of the publishers stdout and handler.
func LinesSeen(t *testing.T, lines []string) []Seen {
	t.Helper()
	var all []Seen
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
		all = append(all, Seen{l.MessageID, l.RoutingKey, body, l.PossibleDuplicate, l.Properties.Expiration.String()})
	}
	return all
}

// Contract tests a publisher against the contract of publish.Publisher. It makes a new one for each test.
func Contract(t *testing.T, makeOne func(*testing.T) Subject) {
	for name, check := range map[string]func(*testing.T, Subject){
		"confirmed arrives":              confirmedArrives,
		"impossible harms none":          impossibleHarmsNone,
		"unroutable is rejected":         unroutableIsRejected,
		"expired is not sent":            expiredIsNotSent,
		"expiration is the smaller time": expirationIsTheSmallerTime,
		"concurrent callers":             concurrentCallers,
		"publish after the end":          publishAfterTheEnd,
		"cancel with messages in flight": cancelWithMessagesInFlight,
		"publish before Run":             publishBeforeRun,
	} {
		t.Run(name, func(t *testing.T) { check(t, makeOne(t)) })
	}
}

func confirmedArrives(t *testing.T, c Subject) {
	var k Maker
	messages := k.Many(300, c.Exchange, c.Key)
	binary := k.Make(c.Exchange, c.Key, "\x00\xff binary")
	binary.Binary = true
	again := k.Make(c.Exchange, c.Key, `{"again":true}`)
	again.PossibleDuplicate = true
	again.Headers = []byte(`{"x-possible-duplicate": false, "a": 1}`)
	lying := k.Make(c.Exchange, c.Key, `{"lying":true}`)
	messages = append(messages, binary, again, lying)

	r := ready(t, c)
	AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
	late := lateConfirmed(t, r, k.Make(c.Exchange, c.Key, `{"late":true}`))
	messages = append(messages, late)
	r.Stop(t)
	if r.Err != nil {
		t.Errorf("Run returned %v", r.Err)
	}

	arrived := c.Arrived()
	if len(arrived) != len(messages) {
		t.Fatalf("%d messages arrived of %d", len(arrived), len(messages))
	}
	for i, m := range messages {
		got := arrived[i]
		body := strings.ReplaceAll(string(m.Payload), `": `, `":`)
		got.Body = strings.ReplaceAll(got.Body, `": `, `":`)
		want := Seen{m.MessageID.String(), m.RoutingKey, body, m.PossibleDuplicate || m == late, ""}
		if got != want {
			t.Errorf("message %d arrived as %+v, want %+v", m.ID, got, want)
		}
	}
}

func ready(t *testing.T, c Subject) *Running {
	t.Helper()
	r := Start(t, c.Publisher)
	r.AwaitPhase(t, publish.Ready)
	return r
}

// lateConfirmed publishes a message that was taken long ago, again while this machine is too slow to send it in time.
// It returns the one that was confirmed.
func lateConfirmed(t *testing.T, r *Running, m *outbox.Message) *outbox.Message {
	t.Helper()
	for range 20 {
		late := *m
		late.TakenAt = time.Now().Add(-2 * outbox.CertainFor)
		r.AwaitPhase(t, publish.Ready)
		if r.Answers(t, &late)[0].Outcome == outbox.Confirmed {
			return &late
		}
	}
	t.Fatal("a message that was taken long ago is never confirmed")
	return nil
}

func impossibleHarmsNone(t *testing.T, c Subject) {
	var k Maker
	messages := k.Many(60, c.Exchange, c.Key)
	bad := map[int]outbox.Reason{
		10: outbox.ReasonInvalidHeaders, 20: outbox.ReasonInvalidProperties, 30: outbox.ReasonInvalidRouting,
		40: outbox.ReasonInvalidHeaders,
	}
	messages[10].Headers = []byte(`{"n": 18446744073709551616}`)
	messages[20].Properties = []byte(`{"priority": 256}`)
	messages[30].RoutingKey = strings.Repeat("k", 256)
	messages[40].Headers = []byte(`{"big": "` + strings.Repeat("x", 140_000) + `"}`)

	r := ready(t, c)
	for i, result := range r.Answers(t, messages...) {
		want := outbox.Confirmed
		if bad[i] != "" {
			want = outbox.Impossible
		}
		if result.Outcome != want || result.Reason != bad[i] {
			t.Errorf("message %d: %v %s (%s), want %v %s",
				i, result.Outcome, result.Reason, result.Detail, want, bad[i])
		}
	}
	r.Stop(t)
	if n := len(c.Arrived()); n != len(messages)-len(bad) {
		t.Errorf("%d messages arrived, want %d", n, len(messages)-len(bad))
	}
}

// unroutableIsRejected: a message that reaches nobody is rejected, and no other.
func unroutableIsRejected(t *testing.T, c Subject) {
	if c.Nowhere == "" {
		t.Skip("each message reaches somebody")
	}
	var k Maker
	messages := k.Many(60, c.Exchange, c.Key)
	lost := func(i int) bool { return i%7 == 0 }
	for i, m := range messages {
		if lost(i) {
			m.RoutingKey = c.Nowhere
		}
	}
	r := ready(t, c)
	r.PublishAll(messages...)
	want := 0
	for i, result := range r.AwaitResults(t, messages...) {
		if lost(i) {
			if result.Outcome != outbox.Rejected || result.Reason != outbox.ReasonUnroutable {
				t.Errorf("message %d reached nobody: %v %s (%s)", i, result.Outcome, result.Reason, result.Detail)
			}
			continue
		}
		want++
		AllAre(t, []outbox.Result{result}, outbox.Confirmed)
	}
	r.Stop(t)
	if n := len(c.Arrived()); n != want {
		t.Errorf("%d messages arrived, want %d", n, want)
	}
}

// expiredIsNotSent: expired messages are reported, and harm no others.
func expiredIsNotSent(t *testing.T, c Subject) {
	var k Maker
	messages := k.Many(3, c.Exchange, c.Key)
	messages[0].Deadline = new(time.Now().Add(time.Hour))
	messages[1].Deadline = new(time.Now().Add(-time.Hour))
	r := ready(t, c)
	for i, result := range r.Answers(t, messages...) {
		expired := result.Outcome == outbox.Impossible && result.Reason == outbox.ReasonExpired
		if expired != (i == 1) {
			t.Errorf("message %d: %v %s (%s)", i, result.Outcome, result.Reason, result.Detail)
		}
	}
	r.Stop(t)
	if n := len(c.Arrived()); n != 2 {
		t.Errorf("%d messages arrived, want 2", n)
	}
}

// expirationIsTheSmallerTime: of the row's own expiration and the time left.
func expirationIsTheSmallerTime(t *testing.T, c Subject) {
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
	var k Maker
	messages := k.Many(len(tests), c.Exchange, c.Key)
	for i, test := range tests {
		if test.properties != "" {
			messages[i].Properties = []byte(test.properties)
		}
		if test.left > 0 {
			messages[i].Deadline = new(time.Now().Add(test.left))
		}
	}
	r := ready(t, c)
	AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
	r.Stop(t)
	arrived := c.Arrived()
	if len(arrived) != len(messages) {
		t.Fatalf("%d messages arrived of %d", len(arrived), len(messages))
	}
	for i, test := range tests {
		got, err := time.ParseDuration(cmp.Or(arrived[i].Expiration, "0") + "ms")
		if err != nil || got < test.least || got > test.most {
			t.Errorf("%v left, properties %s: the expiration is %q", test.left, test.properties, arrived[i].Expiration)
		}
	}
}

func concurrentCallers(t *testing.T, c Subject) {
	r := ready(t, c)
	const callers, each = 8, 100
	all := make([][]*outbox.Message, callers)
	var wait sync.WaitGroup
	for i := range all {
		k := Maker{ID: int64(i) * 1000}
		all[i] = k.Many(each, c.Exchange, c.Key)
		wait.Go(func() { r.PublishAll(all[i]...) })
	}
	wait.Wait()
	for _, messages := range all {
		AllAre(t, r.AwaitResults(t, messages...), outbox.Confirmed)
	}
	r.Stop(t)
	if n := len(c.Arrived()); n != callers*each {
		t.Errorf("%d messages arrived of %d", n, callers*each)
	}
}

func publishAfterTheEnd(t *testing.T, c Subject) {
	r := ready(t, c)
	r.Stop(t)
	r.AwaitPhase(t, publish.Closed)
	var k Maker
	m := k.Make(c.Exchange, c.Key, `{}`)
	AllAre(t, r.Answers(t, m), outbox.NotSent)
}

// cancelWithMessagesInFlight: each message has its result when Run returns, and confirmed messages have arrived.
func cancelWithMessagesInFlight(t *testing.T, c Subject) {
	var k Maker
	messages := k.Many(1000, c.Exchange, c.Key)
	r := ready(t, c)
	r.PublishAll(messages...)
	r.Cancel()
	<-r.Done
	r.Mu.Lock()
	confirmed := make(map[string]bool)
	for _, m := range messages {
		switch results := r.Results[m]; {
		case len(results) != 1:
			t.Errorf("message %d has %d results when Run returns", m.ID, len(results))
		case results[0].Outcome == outbox.Confirmed:
			confirmed[m.MessageID.String()] = true
		}
	}
	r.Mu.Unlock()
	for _, s := range c.Arrived() {
		delete(confirmed, s.MessageID)
	}
	delete(confirmed, "")
	if len(confirmed) > 0 {
		t.Errorf("%d confirmed messages did not arrive", len(confirmed))
	}
}

func publishBeforeRun(t *testing.T, c Subject) {
	var k Maker
	m := k.Make(c.Exchange, c.Key, `{}`)
	c.Publisher.Publish(m)
	r := Start(t, c.Publisher)
	AllAre(t, r.AwaitResults(t, m), outbox.NotSent)
}
