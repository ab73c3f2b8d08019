package publish

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// recordingConn keeps what is written and what is read.
type recordingConn struct {
	net.Conn
	written, read []byte
}

func (c *recordingConn) Write(b []byte) (int, error) {
	c.written = append(c.written, b...)
	return c.Conn.Write(b)
}

func (c *recordingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.read = append(c.read, b[:n]...)
	}
	return n, err
}

// The sorted message is the same as the message that the library writes, with sorted headers, for any headers and any
// division into writes.
func FuzzSorted(f *testing.F) {
	for i, headers := range []string{
		`{}`, `{"a": 1}`, `{"b": 1, "a": 2}`, `{"ab": 1, "a": 2, "": 3, "é": 4, "Z": 5}`,
		`{"z": {"b": [1.5, {"d": "x", "c": {"f": null, "e": true}}, []], "a": {}}, "y": "text", "x": false}`,
		manyHeaders(300), `{"b": "` + strings.Repeat("x", 9000) + `", "a": "` + strings.Repeat("y", 9000) + `"}`,
	} {
		f.Add([]byte(headers), "application/json", "", []byte("\x02\x00\x00\x00\x00\x00\x01"), uint64(i))
		f.Add([]byte(headers), "", "gzip", bytes.Repeat([]byte{contentHeader}, 5000*i), uint64(i))
	}
	encoder := newLibraryEncoder(f)
	f.Fuzz(func(t *testing.T, headers []byte, contentType, contentEncoding string, body []byte, seed uint64) {
		p := amqp.Publishing{ContentType: contentType, ContentEncoding: contentEncoding, Body: body, AppId: "app"}
		var err error
		if p.Headers, err = parseHeaders(headers); err != nil || checkFrame(&p, defaultFrameMax) != nil ||
			len(contentType) > longestShortString || len(contentEncoding) > longestShortString {
			t.Skip()
		}
		wire := encoder.encode(t, p)
		want := bytes.Clone(wire)
		if len(p.Headers) > 0 {
			method := frameHead + int(binary.BigEndian.Uint32(wire[3:])) + frameTail
			at := method + frameHead + 14
			for _, text := range []string{contentType, contentEncoding} {
				if text != "" {
					at += 1 + len(text)
				}
			}
			copy(want[at:], appendTable(nil, p.Headers))
		}
		random := rand.New(rand.NewPCG(seed, 0))
		ours, peer := net.Pipe()
		defer ours.Close()
		go func() { _, _ = io.Copy(io.Discard, peer) }()
		below := &recordingConn{Conn: ours}
		s := newSorted(below)
		s.passing = 0
		for round := range 3 {
			below.written = nil
			for left := wire; len(left) > 0; {
				n := min(len(left), 1+random.IntN([]int{len(left), 10, 5000}[round]))
				if written, err := s.Write(bytes.Clone(left[:n])); written != n || err != nil {
					t.Fatalf("wrote %d of %d, %v", written, n, err)
				}
				left = left[n:]
			}
			if !bytes.Equal(below.written, want) {
				t.Fatalf("got  %q\nwant %q", below.written, want)
			}
		}
	})
}

// manyHeaders returns headers with the keys n to 1.
func manyHeaders(n int) string {
	text := "{"
	for i := n; i > 1; i-- {
		text += fmt.Sprintf("%q: %d, ", strconv.Itoa(i), i)
	}
	return text + `"1": 1}`
}

// appendTable encodes a table in sorted order.
func appendTable(b []byte, t amqp.Table) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, key := range slices.Sorted(maps.Keys(t)) {
		b = append(b, byte(len(key)))
		b = append(b, key...)
		b = appendField(b, t[key])
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func appendField(b []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(v))
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case string:
		return append(binary.BigEndian.AppendUint32(append(b, 'S'), uint32(len(v))), v...)
	case amqp.Table:
		return appendTable(append(b, 'F'), v)
	case []any:
		var list []byte
		for _, element := range v {
			list = appendField(list, element)
		}
		return append(binary.BigEndian.AppendUint32(append(b, 'A'), uint32(len(list))), list...)
	}
	return append(b, 'V')
}

// libraryEncoder gets messages as the library writes them, to a broker that only opens one channel.
type libraryEncoder struct {
	channel *amqp.Channel
	conn    *recordingConn
}

func newLibraryEncoder(t testing.TB) *libraryEncoder {
	ours, peer := net.Pipe()
	t.Cleanup(func() { _, _ = ours.Close(), peer.Close() })
	go openOneChannel(peer)
	e := &libraryEncoder{conn: &recordingConn{Conn: ours}}
	c, err := amqp.Open(e.conn, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Vhost: "/", Locale: "en_US"})
	if err != nil {
		t.Fatal(err)
	}
	if e.channel, err = c.Channel(); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *libraryEncoder) encode(t testing.TB, p amqp.Publishing) []byte {
	e.conn.written = nil
	if err := e.channel.Publish("", "key", false, false, p); err != nil {
		t.Fatal(err)
	}
	return e.conn.written
}

// openOneChannel is the broker's side: it answers the methods that open a connection and a channel, and nothing else.
func openOneChannel(conn net.Conn) {
	frame := func(channel byte, method string) []byte {
		b := []byte{1, 0, channel, 0, 0, 0, byte(len(method))}
		return append(append(b, method...), 0xCE)
	}
	answers := map[string][]byte{ // by class and method
		"\x00\x0a\x00\x0b": frame(0, "\x00\x0a\x00\x1e\x00\x00\x00\x02\x00\x00\x00\x00"), // start-ok: tune
		"\x00\x0a\x00\x28": frame(0, "\x00\x0a\x00\x29\x00"),                             // open: open-ok
		"\x00\x14\x00\x0a": frame(1, "\x00\x14\x00\x0b\x00\x00\x00\x00"),                 // channel.open: its open-ok
	}
	head := make([]byte, 8) // the protocol header
	_, _ = io.ReadFull(conn, head)
	_, _ = conn.Write(frame(0, "\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"))
	for {
		if _, err := io.ReadFull(conn, head[:frameHead]); err != nil {
			return
		}
		content := make([]byte, int(binary.BigEndian.Uint32(head[3:]))+frameTail)
		if _, err := io.ReadFull(conn, content); err != nil {
			return
		}
		if head[0] == 1 {
			_, _ = conn.Write(answers[string(content[:4])])
		}
	}
}

// BenchmarkSorted is what sorting adds to a message of 200 bytes.
func BenchmarkSorted(b *testing.B) {
	encoder := newLibraryEncoder(b)
	for name, headers := range map[string]string{
		"no headers": `{}`, "1 header": `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`,
		"5 headers": `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "acme", "b": 1, "a": 2, "c": true}`,
	} {
		b.Run(name, func(b *testing.B) {
			table, err := parseHeaders([]byte(headers))
			if err != nil {
				b.Fatal(err)
			}
			wire := bytes.Clone(encoder.encode(b, amqp.Publishing{ContentType: "application/json", Headers: table, Body: make([]byte, 200)}))
			s, scratch := &sorted{}, make([]byte, len(wire))
			b.ReportAllocs()
			for b.Loop() {
				copy(scratch, wire)
				s.sort(scratch)
			}
		})
	}
}
