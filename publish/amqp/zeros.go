package amqp

import (
	"bytes"
	"encoding/binary"
	"net"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// zeroPriority in the delivery mode stands for the priority 0. The library would leave that out, and consumers of AMQP
// 1.0 read a missing priority as 4. So the library writes this mark and the priority 1, and zeros corrects both. A
// Publishing of the library that tells 0 from a missing priority would replace this file.
const zeroPriority = 0x80

// setPriority sets the priority of a message that zeros will see; nil: none.
func setPriority(p *amqp091.Publishing, priority *uint8) {
	switch {
	case priority == nil:
	case *priority == 0:
		p.DeliveryMode |= zeroPriority
		p.Priority = 1
	default:
		p.Priority = *priority
	}
}

// zeros is the connection below the library, which writes with a lock held. It follows the frames of AMQP.
type zeros struct {
	net.Conn
	rest int    // bytes of the current frame that are not written yet
	held []byte // the start of a frame, until the length or the properties are complete
}

func newZeros(conn net.Conn) net.Conn { return &zeros{Conn: conn, rest: len("AMQP\x00\x00\x09\x01")} }

func (z *zeros) Write(b []byte) (int, error) {
	n := len(b)
	if len(z.held) > 0 {
		b = append(z.held, b...)
		z.held = nil
	}
	at := min(z.rest, len(b))
	z.rest -= at
	for at < len(b) {
		size, mode := examine(b[at:])
		if size == 0 {
			z.held, b = bytes.Clone(b[at:]), b[:at]
			break
		}
		if mode > 0 {
			b = bytes.Clone(b) // a Write must not change its argument
			b[at+mode] &^= zeroPriority
			b[at+mode+1] = 0
		}
		at += size
		z.rest = max(0, at-len(b))
	}
	if len(b) == 0 {
		return n, nil
	}
	if _, err := z.Conn.Write(b); err != nil {
		return 0, err
	}
	return n, nil
}

// examine returns the size of the frame at the start of b; 0: more of it is needed. Mode is where the marked delivery
// mode is, before the priority; 0: there is none.
func examine(b []byte) (size, mode int) {
	const (
		begin, end                                   = 7, 1      // type, channel and size; the end mark
		contentHeader, flags, properties             = 2, 19, 21 // the flags follow class, weight and body size
		contentType, contentEncoding, headers, fixed = 0x8000, 0x4000, 0x2000, 0x1800
	)
	if len(b) < begin {
		return 0, 0
	}
	size = begin + int(binary.BigEndian.Uint32(b[3:])) + end
	if b[0] != contentHeader {
		return size, 0
	}
	if len(b) < size {
		return 0, 0
	}
	set := binary.BigEndian.Uint16(b[flags:])
	if set&fixed != fixed { // delivery mode and priority
		return size, 0
	}
	mode = properties
	for _, text := range [...]uint16{contentType, contentEncoding} {
		if set&text != 0 {
			mode += 1 + int(b[mode])
		}
	}
	if set&headers != 0 {
		mode += 4 + int(binary.BigEndian.Uint32(b[mode:]))
	}
	if b[mode]&zeroPriority == 0 {
		return size, 0
	}
	return size, mode
}
