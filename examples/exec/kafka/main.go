// kafka is a handler for cdc-relay run --publisher exec that sends messages to Kafka.
//
//	usage: cdc-relay run --publisher exec -- ./kafka [-tls] [-sasl MECHANISM] BROKER…
//
// The README beside http.sh says how a message becomes a record.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// deliveryTimeout is how long a record may take. After the relay's --send-timeout (10 s), the relay would kill the
// handler.
const deliveryTimeout = 5 * time.Second

func main() {
	options, err := parseFlags(os.Args[1:], os.Getenv)
	if err == nil {
		err = run(os.Stdin, os.Stdout, options)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kafka:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string, getenv func(string) string) ([]kgo.Opt, error) {
	flags := flag.NewFlagSet("kafka", flag.ContinueOnError)
	useTLS := flags.Bool("tls", false, "connect by TLS; SSL_CERT_FILE can name the certificate authorities")
	sasl := flags.String("sasl", "", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; reads KAFKA_USERNAME, KAFKA_PASSWORD")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() == 0 {
		return nil, errors.New("usage: kafka [-tls] [-sasl MECHANISM] BROKER…")
	}
	options := []kgo.Opt{kgo.SeedBrokers(flags.Args()...)}
	if *useTLS {
		options = append(options, kgo.DialTLSConfig(new(tls.Config)))
	}
	user, password := getenv("KAFKA_USERNAME"), getenv("KAFKA_PASSWORD")
	switch *sasl {
	case "":
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("-sasl %s: want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", *sasl)
	}
	return options, nil
}

// handler sends records and answers the relay.
type handler struct {
	client *kgo.Client
	// alone sends one record at a time. Kafka rejects a whole batch for one record.
	alone *kgo.Client
	// produceRequests counts those that were written to a connection, even in part.
	produceRequests atomic.Int64

	mu  sync.Mutex // main and franz-go's callbacks write
	out *json.Encoder
}

// run reads messages until in ends.
func run(in io.Reader, out io.Writer, options []kgo.Opt) error {
	h := &handler{out: json.NewEncoder(out)}
	options = append([]kgo.Opt{
		kgo.WithHooks(h),
		kgo.ProducerLinger(0), // the next message of a key comes only after the answer
		kgo.UnknownTopicRetries(0),
		kgo.RecordDeliveryTimeout(deliveryTimeout),
		// franz-go notices a timeout only after a backoff.
		kgo.RetryBackoffFn(func(int) time.Duration { return deliveryTimeout / 10 }),
		kgo.AllowIdempotentProduceCancellation(),
	}, options...)
	var err error
	if h.client, err = kgo.NewClient(options...); err != nil {
		return err
	}
	defer h.client.Close()
	if h.alone, err = kgo.NewClient(append(options, kgo.MaxBufferedRecords(1))...); err != nil {
		return err
	}
	defer h.alone.Close()
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the relay has all answers
			return nil
		}
		if err != nil {
			return err
		}
		h.take(line)
	}
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (h *handler) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == kmsg.Produce.Int16() {
		h.produceRequests.Add(1)
	}
}

func (h *handler) take(line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil { // such as a payload that is nested too deeply
		h.answer(idOf(line), "impossible", err.Error())
		return
	}
	h.send(h.client, &m)
}

func (h *handler) send(client *kgo.Client, m *message) {
	before := h.produceRequests.Load()
	client.Produce(context.Background(), m.record(), func(_ *kgo.Record, err error) {
		if client == h.client && ofOneRecord(err) {
			h.send(h.alone, m) // waits for the one before
			return
		}
		outcome, detail := outcomeOf(err, h.produceRequests.Load() > before)
		h.answer(m.ID, outcome, detail)
	})
}

// ofOneRecord tells whether Kafka rejected a batch because of one record in it.
func ofOneRecord(err error) bool {
	return isOneOf(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord)
}

func isOneOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// outcomeOf classifies the end of a record. Kafka cannot have it if no request was written since the handler got it.
func outcomeOf(err error, requested bool) (outcome, detail string) {
	switch {
	case err == nil:
		return "confirmed", ""
	case ofOneRecord(err), errors.Is(err, kerr.InvalidTopicException):
		return "impossible", err.Error()
	case isOneOf(err, kerr.UnknownTopicOrPartition, kerr.PolicyViolation, kerr.InvalidTimestamp):
		return "rejected", err.Error()
	case isOneOf(err, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed):
		return "not_sent", err.Error()
	case requested:
		return "unknown", err.Error()
	}
	return "not_sent", err.Error()
}

func (h *handler) answer(id, outcome, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out.Encode(map[string]string{"message_id": id, "outcome": outcome, "detail": detail})
}
