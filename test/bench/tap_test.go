package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// tap counts what clients send to a server.
type tap struct {
	statements   atomic.Int64 // on ordinary connections to Postgres
	frames, sent atomic.Int64 // AMQP frames, and their bytes
}

// in puts the tap in front of the server of an address. read reads what a client sends on one connection, which the
// server gets as well.
func (p *tap) in(t *testing.T, address string, read func(client io.Reader)) string {
	t.Helper()
	to, err := url.Parse(address)
	services.Must(t, err)
	to.Host = services.Between(t, to.Host, func(client, server net.Conn) {
		sent := io.TeeReader(client, server)
		read(sent)
		_, _ = io.Copy(io.Discard, sent)
	}, services.Answers)
	return to.String()
}

func (p *tap) amqp(client io.Reader) {
	buffered := bufio.NewReaderSize(client, 1<<16)
	const greeting = 8 // AMQP and the version
	_, _ = buffered.Discard(greeting)
	for frame := range services.AMQPFrames(buffered) {
		p.frames.Add(1)
		p.sent.Add(int64(len(frame)))
	}
}

func (p *tap) postgres(client io.Reader) {
	buffered := bufio.NewReaderSize(client, 1<<16)
	var length [4]byte // of itself and the body
	body := func() int64 { return int64(binary.BigEndian.Uint32(length[:])) - int64(len(length)) }
	_, _ = io.ReadFull(buffered, length[:])
	startup, _ := io.ReadAll(io.LimitReader(buffered, body()))
	if bytes.Contains(startup, []byte("\x00replication\x00")) {
		return
	}
	for {
		kind, err := buffered.ReadByte()
		if err != nil {
			return
		}
		if kind == 'Q' || kind == 'E' { // a simple query, or Execute
			p.statements.Add(1)
		}
		_, _ = io.ReadFull(buffered, length[:])
		_, _ = io.CopyN(io.Discard, buffered, body())
	}
}
