package publish

import (
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestHeadersArriveInSortedOrder(t *testing.T) {
	t.Parallel()
	u := services.VHost(t)
	headersArriveSorted(t, u, u)
}

// headersArriveSorted publishes by one URL, and reads what the broker sends by the other, without TLS.
func headersArriveSorted(t *testing.T, publishURL, readURL string) {
	q := newAdmin(t, readURL).queue(services.Name(t), nil)
	r := startAMQP(t, AMQPConfig{URL: publishURL})
	var k maker
	messages := k.many(20, "", q)
	var want []string
	for i, m := range messages {
		// The library splits messages with the long one over several writes.
		m.Headers = []byte(`{"key-2": [{"key-5": 1, "key-3": [], "key-4": null}], "key-1": "` + strings.Repeat("-", i*500) + `", "y": 1.5, "key-6": {"key-9": 9, "key-7": true, "key-8": ""}}`)
		m.Extra = []outbox.Header{{Name: "key-0", Value: "tenant"}}
		m.PossibleDuplicate = true
		want = append(want, "key-0", "key-1", "key-2", "key-3", "key-4", "key-5", "key-6", "key-7", "key-8", "key-9", outbox.PossibleDuplicateHeader)
	}
	r.publish(messages...)
	allAre(t, r.awaitResults(t, messages...), outbox.Confirmed)

	var wire *recordingConn
	c, err := amqp.DialConfig(readURL, amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		wire = &recordingConn{Conn: conn}
		return wire, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	channel, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	(&admin{t: t, channel: channel}).drain(q)
	_ = c.Close() // no more is read
	// No name of a queue contains a hyphen.
	got := regexp.MustCompile(`key-\d|`+outbox.PossibleDuplicateHeader).FindAllString(string(wire.read), -1)
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
