package publish

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
)

// sorted is the connection directly below the AMQP library, above TLS. It sorts the headers of the messages; the library
// writes them in the random order of a Go map.
type sorted struct {
	net.Conn
	passing int    // how many of the next bytes stay as they are
	held    []byte // the beginning of a frame
}

func newSorted(below net.Conn) *sorted {
	return &sorted{Conn: below, passing: len("AMQP\x00\x00\x09\x01")} // these bytes, of no frame, are the first
}

// Write changes b: the buffers of the library, never the body of a message.
func (s *sorted) Write(b []byte) (int, error) {
	if ready := s.sort(b); len(ready) > 0 {
		if _, err := s.Conn.Write(ready); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

const (
	frameHead = 7 // type, channel, size
	frameTail = 1
	// contentHeader is the type of the frames that have headers.
	contentHeader = 2
)

// sort returns what to send now. It keeps the beginning of a frame for the next call.
func (s *sorted) sort(b []byte) []byte {
	if len(s.held) > 0 {
		b, s.held = append(s.held, b...), nil
	}
	at := min(s.passing, len(b))
	s.passing -= at
	for at < len(b) {
		frame := b[at:]
		if len(frame) < frameHead {
			s.held = bytes.Clone(frame)
			return b[:at]
		}
		size := frameHead + int(binary.BigEndian.Uint32(frame[3:])) + frameTail
		switch {
		case frame[0] != contentHeader:
			s.passing = max(0, size-len(frame))
		case size > len(frame):
			s.held = bytes.Clone(frame)
			return b[:at]
		default:
			sortHeaders(frame[frameHead : size-frameTail])
		}
		at += min(size, len(frame))
	}
	return b
}

// sortHeaders sorts the headers in a content header: class, weight, body size, flags, and the properties that the flags
// name. At most content type and content encoding come before the headers.
func sortHeaders(content []byte) {
	const flagsAt, hasType, hasEncoding, hasHeaders = 12, 1 << 15, 1 << 14, 1 << 13
	flags := binary.BigEndian.Uint16(content[flagsAt:])
	if flags&hasHeaders == 0 {
		return
	}
	at := flagsAt + 2
	for _, flag := range [...]uint16{hasType, hasEncoding} {
		if flags&flag != 0 {
			at += 1 + int(content[at])
		}
	}
	sortTable(content[at:])
}

// sortTable sorts the field table at the beginning of b, and the tables in it, and returns its size.
func sortTable(b []byte) int {
	end := 4 + int(binary.BigEndian.Uint32(b))
	var few [8][]byte
	entries := few[:0]
	for at := 4; at < end; {
		entry := b[at:end]
		value := 1 + int(entry[0])
		entry = entry[:value+sortField(entry[value:])]
		entries = append(entries, entry)
		at += len(entry)
	}
	if !slices.IsSortedFunc(entries, compareKeys) {
		slices.SortFunc(entries, compareKeys)
		copy(b[4:end], slices.Concat(entries...))
	}
	return end
}

// compareKeys compares entries of a table; each begins with the length of its key, and the key.
func compareKeys(x, y []byte) int { return bytes.Compare(x[1:1+x[0]], y[1:1+y[0]]) }

// sortField sorts the tables in the value at the beginning of b, and returns its size. It knows the types that fieldSize
// knows.
func sortField(b []byte) int {
	switch b[0] {
	case 'V':
		return 1
	case 't':
		return 2
	case 'S':
		return 5 + int(binary.BigEndian.Uint32(b[1:]))
	case 'F':
		return 1 + sortTable(b[1:])
	case 'A':
		end := 5 + int(binary.BigEndian.Uint32(b[1:]))
		for at := 5; at < end; {
			at += sortField(b[at:end])
		}
		return end
	}
	return 9 // int64, float64
}
