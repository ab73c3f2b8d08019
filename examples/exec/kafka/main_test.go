package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const hang = 5 * time.Minute

// kafka is a broker in this process. It auto-creates no topic.
func kafka(t *testing.T, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, "orders", "shop")}, options...)...)
	must(t, err)
	t.Cleanup(cluster.Close)
	return cluster
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// line is a line of the relay. The last of two equal keys counts, so more can replace a key.
func line(n int, more string) string {
	return fmt.Sprintf(`{"id":%d,"message_id":"%s","exchange":"","routing_key":"orders","ordering_key":null,"headers":null,`+
		`"properties":null,"created_at":"2026-11-23T10:00:00Z","possible_duplicate":false,"payload":{"n" : 1},"payload_base64":null%s}`, n, id(n), more)
}

type reply struct {
	ID      string `json:"message_id"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// running is a handler in this process.
type running struct {
	t       *testing.T
	input   io.Writer
	answers *bufio.Scanner
}

func start(t *testing.T, options []kgo.Opt) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	in, input := io.Pipe()
	answers, out := io.Pipe()
	context.AfterFunc(ctx, func() { out.CloseWithError(errors.New("no answer")) })
	ended := make(chan error, 1)
	go func() { ended <- run(in, out, options) }()
	t.Cleanup(func() {
		cancel()
		input.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &running{t, input, bufio.NewScanner(answers)}
}

// ask gives lines to the handler, and returns its answers by id.
func (r *running) ask(lines ...string) map[string]reply {
	r.t.Helper()
	go func() {
		for _, line := range lines {
			io.WriteString(r.input, line+"\n")
		}
	}()
	replies := make(map[string]reply)
	for len(replies) < len(lines) && r.answers.Scan() {
		var one reply
		if err := json.Unmarshal(r.answers.Bytes(), &one); err != nil {
			r.t.Fatalf("%v: %s", err, r.answers.Text())
		}
		replies[one.ID] = one
	}
	if len(replies) < len(lines) {
		r.t.Fatalf("%d answers to %d messages: %v", len(replies), len(lines), r.answers.Err())
	}
	return replies
}

func handle(t *testing.T, options []kgo.Opt, lines ...string) map[string]reply {
	t.Helper()
	return start(t, options).ask(lines...)
}

func brokers(cluster *kfake.Cluster) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
}

func want(t *testing.T, got reply, outcome, detail string) {
	t.Helper()
	if got.Outcome != outcome || !strings.Contains(got.Detail, detail) {
		t.Errorf("%s is %s: %s, want %s: %s", got.ID, got.Outcome, got.Detail, outcome, detail)
	}
}

// records reads n records, in the order of their values.
func records(t *testing.T, cluster *kfake.Cluster, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders", "shop"))
	must(t, err)
	defer client.Close()
	var found []*kgo.Record
	for len(found) < n {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", len(found), err)
		}
		found = append(found, fetches.Records()...)
	}
	slices.SortFunc(found, func(a, b *kgo.Record) int { return strings.Compare(string(a.Value), string(b.Value)) })
	return found
}

func stored(cluster *kfake.Cluster, topic string) (n int64) {
	for _, partition := range cluster.PartitionInfos(topic) {
		n += partition.HighWatermark
	}
	return n
}

func TestRecord(t *testing.T) {
	t.Parallel()
	cluster := kafka(t)
	replies := handle(t, brokers(cluster),
		line(1, ""),
		line(2, `,"exchange":"shop","routing_key":"orders.created","ordering_key":"k<1>","payload":"a",`+
			`"headers":{"tenant":"acme","n":1.50,"list":[1, 2],"x-possible-duplicate":false,"message_id":"other"},`+
			`"properties":{"content_type":"text/plain","priority":5,"tenant":"other"},"possible_duplicate":true`),
		line(3, `,"payload":null,"payload_base64":"AP8="`),
		line(4, `,"payload":null`),
		line(5, `,"payload":null,"payload_base64":""`),
	)
	for _, r := range replies {
		want(t, r, "confirmed", "")
	}
	var got []string
	for _, r := range records(t, cluster, 5) {
		text := fmt.Sprintf("%s %q %q", r.Topic, r.Key, r.Value)
		for _, h := range r.Headers {
			text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
		}
		got = append(got, text)
	}
	wanted := []string{
		`orders "" "" message_id=` + id(5) + ` routing_key=orders`,
		`orders "" "\x00\xff" message_id=` + id(3) + ` routing_key=orders`,
		`shop "k<1>" "\"a\"" content_type=text/plain list=[1, 2] message_id=` + id(2) +
			` n=1.50 priority=5 routing_key=orders.created tenant=acme x-possible-duplicate=true`,
		`orders "" "null" message_id=` + id(4) + ` routing_key=orders`,
		`orders "" "{\"n\" : 1}" message_id=` + id(1) + ` routing_key=orders`,
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

// Messages of one ordering key are in one partition.
func TestOrderingKey(t *testing.T) {
	t.Parallel()
	cluster := kafka(t)
	for n := range 3 { // the relay gives the next message after the answer
		handle(t, brokers(cluster), line(n, fmt.Sprintf(`,"ordering_key":"k","payload":%d`, n)))
	}
	for n, r := range records(t, cluster, 3) {
		if r.Offset != int64(n) {
			t.Errorf("%s is at offset %d of partition %d, want %d", r.Value, r.Offset, r.Partition, n)
		}
	}
}

func TestMessagesThatKafkaDoesNotAccept(t *testing.T) {
	t.Parallel()
	cluster := kafka(t)
	must(t, cluster.CreateTopic("small", 1, map[string]string{"max.message.bytes": "1000"}))
	lines := []string{
		line(1, `,"routing_key":"nowhere"`),
		line(2, `,"payload":"`+strings.Repeat("x", 2_000_000)+`"`),
		line(3, `,"payload":`+strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)),
		line(4, `,"payload":`+strings.Repeat("[", 300)+strings.Repeat("]", 300)),
		line(5, `,"routing_key":"small","payload":"`+strings.Repeat("x", 2_000)+`"`),
		"no message",
	}
	for n := 10; n < 15; n++ { // together they are too large
		lines = append(lines, line(n, `,"routing_key":"small","payload":"`+strings.Repeat("x", 400)+`"`))
	}
	replies := handle(t, append(brokers(cluster), kgo.ProducerBatchCompression(kgo.NoCompression())), lines...)
	want(t, replies[id(1)], "rejected", "UNKNOWN_TOPIC_OR_PARTITION")
	want(t, replies[id(2)], "impossible", "MESSAGE_TOO_LARGE")
	want(t, replies[id(3)], "impossible", "exceeded max depth")
	want(t, replies[id(4)], "confirmed", "")
	want(t, replies[id(5)], "impossible", "MESSAGE_TOO_LARGE")
	want(t, replies[""], "impossible", "invalid character")
	for n := 10; n < 15; n++ {
		want(t, replies[id(n)], "confirmed", "")
	}
	if n := stored(cluster, "small"); n != 5 {
		t.Errorf("the topic has %d records, want 5", n)
	}
}

// Kafka is down from the start, or goes down later.
func TestKafkaIsDown(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			t.Parallel()
			cluster := kafka(t)
			handler := start(t, brokers(cluster))
			if later {
				want(t, handler.ask(line(0, ""))[id(0)], "confirmed", "")
			}
			cluster.Close()
			if later { // franz-go finds out by sending
				handler.ask(line(0, ""))
			}
			for _, r := range handler.ask(line(1, ""), line(2, "")) {
				want(t, r, "not_sent", "connection refused")
			}
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answers kmsg.Key
		err     *kerr.Error
		outcome string
	}{
		{kmsg.Produce, kerr.InvalidTopicException, "impossible"},
		{kmsg.Produce, kerr.InvalidRecord, "impossible"},
		{kmsg.Produce, kerr.PolicyViolation, "rejected"},
		{kmsg.Produce, kerr.TopicAuthorizationFailed, "not_sent"},
		{kmsg.Produce, kerr.ClusterAuthorizationFailed, "not_sent"},
		{kmsg.Produce, kerr.NotEnoughReplicas, "unknown"}, // franz-go tries again until the time is over
		{kmsg.Metadata, kerr.InvalidTopicException, "impossible"},
		{kmsg.Metadata, kerr.TopicAuthorizationFailed, "not_sent"},
	} {
		t.Run(fmt.Sprint(c.answers.Name(), " ", c.err.Message), func(t *testing.T) {
			t.Parallel()
			cluster := kafka(t)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{c.answers}, Topic: "orders", Err: c.err, Count: -1})
			detail := c.err.Message
			if c.outcome == "unknown" {
				detail = "timed out"
			}
			want(t, handle(t, brokers(cluster), line(1, ""))[id(1)], c.outcome, detail)
		})
	}
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	cluster := kafka(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "shop", "s3cr3t"), kfake.Superuser("SCRAM-SHA-256", "shop", "s3cr3t"))
	login := func(mechanism, password, outcome, detail string) {
		t.Helper()
		environment := map[string]string{"KAFKA_USERNAME": "shop", "KAFKA_PASSWORD": password}
		getenv := func(name string) string { return environment[name] }
		options, err := parseFlags(append([]string{"-sasl", mechanism}, cluster.ListenAddrs()...), getenv)
		must(t, err)
		want(t, handle(t, options, line(1, ""))[id(1)], outcome, detail)
	}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256"} {
		login(mechanism, "s3cr3t", "confirmed", "")
		login(mechanism, "other", "not_sent", "")
	}
	// Kafka answers, and kfake ends the connection.
	cluster.ControlKey(kmsg.SASLAuthenticate.Int16(), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return response, nil, true
	})
	login("PLAIN", "other", "not_sent", "SASL_AUTHENTICATION_FAILED")
}

// Kafka stores a record, and its answer is lost. franz-go sends the record again with the same sequence number.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	cluster := kafka(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.NotEnoughReplicasAfterAppend})
	replies := handle(t, brokers(cluster), line(1, ""))
	want(t, replies[id(1)], "confirmed", "")
	if n := stored(cluster, "orders"); n != 1 {
		t.Errorf("the topic has %d records, want 1", n)
	}
}

// Kafka ends each connection on which it reads a record.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	cluster := kafka(t)
	cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, errors.New("the connection ends"), true
	})
	want(t, handle(t, brokers(cluster), line(1, ""))[id(1)], "unknown", "")
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{}, {"-sasl", "SCRAM", "localhost:9092"}, {"-ssl", "localhost:9092"}} {
		if _, err := parseFlags(args, os.Getenv); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// TestRelay lets cdc-relay publish two messages that the caller has enqueued, one of them to a topic that does not exist.
func TestRelay(t *testing.T) {
	t.Parallel()
	if os.Getenv("CDC_RELAY_DATABASE_URL") == "" {
		t.Skip("needs CDC_RELAY_DATABASE_URL, and cdc-relay in the PATH")
	}
	cluster := kafka(t)
	program := filepath.Join(t.TempDir(), "kafka")
	for _, args := range [][]string{
		{"go", "build", "-o", program, "."},
		append([]string{"cdc-relay", "drain", "--publisher", "exec", "--", program}, cluster.ListenAddrs()...),
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if r := records(t, cluster, 1)[0]; r.Topic != "orders" || string(r.Value) != `{"n" : 1}` {
		t.Errorf("the topic %s has %s", r.Topic, r.Value)
	}
}
