package decode

import (
	"encoding/binary"
	"fmt"
)

// reader reads one message and never past its end. After the first short read it stays in error and returns zeros, so
// that a caller checks once.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) bytes(n int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.rest) {
		r.err = fmt.Errorf("%s: want %d bytes, %d are left", what, n, len(r.rest))
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint8(what string) byte {
	if b := r.bytes(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16(what string) uint16 {
	if b := r.bytes(2, what); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32(what string) uint32 {
	if b := r.bytes(4, what); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64(what string) uint64 {
	if b := r.bytes(8, what); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// cstring reads up to a zero byte, and skips that byte.
func (r *reader) cstring(what string) string {
	if r.err != nil {
		return ""
	}
	for i, c := range r.rest {
		if c == 0 {
			s := string(r.rest[:i])
			r.rest = r.rest[i+1:]
			return s
		}
	}
	r.err = fmt.Errorf("%s: the string has no end", what)
	return ""
}
