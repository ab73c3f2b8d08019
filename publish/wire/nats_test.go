package wire_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

// nats is a sketch of another publisher. The relay would need this and one case in newPublisher of cmd/cdc-relay. In
// the verbose mode of NATS, the server answers each message.
type nats struct {
	inbox   *publish.Inbox
	address string
}

func (p *nats) Publish(m *outbox.Message) { p.inbox.Publish(m) }

func (p *nats) Run(ctx context.Context, sink publish.Sink) error {
	p.inbox.Sink = sink
	p.inbox.SetState(publish.Connecting, "not connected yet")
	for ctx.Err() == nil {
		err := p.serve(ctx)
		p.inbox.SetState(publish.Connecting, err.Error())
		p.inbox.RejectFor(ctx, time.Second, err.Error())
	}
	p.inbox.End()
	p.inbox.SetState(publish.Closed, "stopped")
	return nil
}

// serve publishes on one connection.
func (p *nats) serve(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	answers := bufio.NewScanner(conn)
	fmt.Fprint(conn, "CONNECT {\"verbose\":true}\r\n")
	for answers.Text() != "+OK" { // after INFO
		if !answers.Scan() {
			return fmt.Errorf("no answer to CONNECT: %w", answers.Err())
		}
	}
	p.inbox.Reject("connecting")
	p.inbox.SetState(publish.Ready, "")
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-p.inbox.Messages.Wake():
			for _, m := range p.inbox.Messages.Take(nil) {
				p.inbox.Sink.Deliver(p.send(conn, answers, m))
			}
		}
	}
	return ctx.Err()
}

func (p *nats) send(conn net.Conn, answers *bufio.Scanner, m *outbox.Message) outbox.Result {
	var line bytes.Buffer
	if err := wire.AppendLine(&line, m, ""); err != nil {
		return wire.Impossible(m, err)
	}
	m.SentAt = time.Now()
	fmt.Fprintf(conn, "PUB %s %d\r\n%s\r\n", m.RoutingKey, line.Len(), line.Bytes())
	switch {
	case !answers.Scan():
		return outbox.Result{Message: m, Outcome: outbox.Unknown, Detail: "the connection was lost before the answer"}
	case answers.Text() != "+OK":
		return outbox.Result{Message: m, Outcome: outbox.Rejected, Reason: outbox.ReasonNack, Detail: answers.Text()}
	}
	return outbox.Result{Message: m, Outcome: outbox.Confirmed}
}

// answerAsNATS accepts every message of one connection after the other.
func answerAsNATS(server net.Listener, arrived io.Writer) {
	for {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		fmt.Fprint(conn, "INFO {}\r\n+OK\r\n")
		lines := bufio.NewReader(conn)
		_, err = lines.ReadString('\n')
		for size := 0; err == nil; {
			if _, err = fmt.Fscanf(lines, "PUB k %d\r\n", &size); err == nil {
				_, _ = io.CopyN(arrived, lines, int64(size))
				_, _ = lines.ReadString('\n')
				_, err = fmt.Fprint(conn, "+OK\r\n")
			}
		}
		_ = conn.Close()
	}
}

func TestAnotherPublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		var arrived publishtest.Buffer
		go answerAsNATS(server, &arrived)
		return publishtest.Subject{
			Publisher: &nats{publish.NewInbox(), server.Addr().String()}, Exchange: "x", Key: "k",
			Arrived: func() []publishtest.Seen { return publishtest.LinesSeen(t, arrived.Lines()) },
		}
	})
}
