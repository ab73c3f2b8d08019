package decode

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// column fills one field of a message from a column of the row.
type column struct {
	name string
	// nullable: SQL NULL is a value of this column.
	nullable bool
	set      func(m *outbox.Message, v value, in *interner) error
}

// columns returns all columns that the relay needs from the stream. A missing one stops the relay
// (CONTRIBUTING.md, invariant 11).
func columns() []column {
	return []column{
		{"id", false, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.ID, err = v.int()
			return err
		}},
		{"message_id", false, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.MessageID, err = v.uuid()
			return err
		}},
		{"exchange", true, func(m *outbox.Message, v value, in *interner) error {
			if m.Fits("exchange", len(v.data)) {
				exchange := in.string(v.data)
				m.Exchange = &exchange
			}
			return nil
		}},
		{"routing_key", false, func(m *outbox.Message, v value, in *interner) error {
			if m.Fits("routing_key", len(v.data)) {
				m.RoutingKey = in.string(v.data)
			}
			return nil
		}},
		{"ordering_key", true, func(m *outbox.Message, v value, _ *interner) error {
			key := string(v.data)
			m.OrderingKey = &key
			return nil
		}},
		{"payload", true, func(m *outbox.Message, v value, _ *interner) error {
			m.BothPayloads = m.Payload != nil
			if m.Unread += len(v.data); m.Unread <= outbox.MostStreamed {
				m.Payload, m.Unread = v.json(), 0
			}
			return nil
		}},
		{"payload_bytes", true, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.Binary, m.BothPayloads = true, m.Payload != nil
			if m.Unread += len(v.data); m.Unread <= outbox.MostStreamed {
				m.Unread = 0
				m.Payload, err = v.bytea()
			}
			return err
		}},
		{"headers", true, func(m *outbox.Message, v value, _ *interner) error {
			if m.Fits("headers", len(v.data)) {
				m.Headers = v.json()
			}
			return nil
		}},
		{"properties", true, func(m *outbox.Message, v value, _ *interner) error {
			if m.Fits("properties", len(v.data)) {
				m.Properties = v.json()
			}
			return nil
		}},
		{"schema_version", false, func(m *outbox.Message, v value, _ *interner) error {
			n, err := v.int()
			m.SchemaVersion = int(n)
			return err
		}},
		{"created_at", false, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.CreatedAt, err = v.time()
			return err
		}},
		{"available_at", true, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.AvailableAt, err = v.timeOrNull()
			return err
		}},
		{"expires_at", true, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.ExpiresAt, err = v.timeOrNull()
			return err
		}},
		{"attempts", false, func(m *outbox.Message, v value, _ *interner) error {
			n, err := v.int()
			m.Attempts = int(n)
			return err
		}},
		{"max_attempts", true, func(m *outbox.Message, v value, _ *interner) error {
			n, err := v.int()
			most := int(n)
			m.MaxAttempts = &most
			return err
		}},
		{"possible_duplicate", true, func(m *outbox.Message, v value, _ *interner) (err error) {
			m.PossibleDuplicate, err = v.bool()
			return err
		}},
	}
}

// The types of header columns, as OIDs of pg_type.
const (
	boolOID, int8OID, int2OID, int4OID    = 16, 20, 21, 23
	textOID, bpcharOID, varcharOID, uuOID = 25, 1042, 1043, 2950
)

// headerColumn returns the reader of a header column; nil: its type cannot be a header.
func headerColumn(name string, kind uint32) *column {
	var read func(v value) (any, error)
	switch kind {
	case boolOID:
		read = func(v value) (any, error) { return v.bool() }
	case int2OID, int4OID, int8OID:
		read = func(v value) (any, error) { return v.int() }
	case textOID, bpcharOID, varcharOID:
		read = func(v value) (any, error) { return string(v.data), nil }
	case uuOID:
		read = func(v value) (any, error) {
			u, err := v.uuid()
			return u.String(), err
		}
	default:
		return nil
	}
	return &column{name, true, func(m *outbox.Message, v value, _ *interner) error {
		if !m.Fits(name, len(v.data)) {
			return nil
		}
		is, err := read(v)
		m.Extra = append(m.Extra, outbox.Header{Name: name, Value: is})
		return err
	}}
}

// value is one column of a row from the wire. The bytes are valid only until the next message.
type value struct {
	data   []byte
	binary bool // pgoutput sends binary if the type has a send function
}

func (v value) int() (int64, error) {
	if !v.binary {
		n, err := strconv.ParseInt(string(v.data), 10, 64)
		if err != nil {
			return 0, errors.New("not an integer of 64 bits")
		}
		return n, nil
	}
	switch len(v.data) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(v.data))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v.data))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(v.data)), nil
	}
	return 0, fmt.Errorf("an integer of %d bytes: want 2, 4 or 8", len(v.data))
}

func (v value) uuid() (outbox.UUID, error) {
	if !v.binary {
		return outbox.ParseUUID(v.data)
	}
	if len(v.data) != 16 {
		return outbox.UUID{}, fmt.Errorf("a UUID of %d bytes: want 16", len(v.data))
	}
	return outbox.UUID(v.data), nil
}

func (v value) bool() (bool, error) {
	if len(v.data) == 1 {
		switch v.data[0] {
		case 0, 'f':
			return false, nil
		case 1, 't':
			return true, nil
		}
	}
	return false, errors.New("not a boolean")
}

// json copies a json or jsonb value. The binary form of jsonb starts with a version byte, so far 1 (jsonb_send). No
// JSON text starts with that byte.
func (v value) json() []byte {
	data := v.data
	if v.binary && len(data) > 0 && data[0] == 1 {
		data = data[1:]
	}
	return append(make([]byte, 0, len(data)), data...)
}

func (v value) bytea() ([]byte, error) {
	if v.binary {
		return append(make([]byte, 0, len(v.data)), v.data...), nil
	}
	if len(v.data) < 2 || v.data[0] != '\\' || v.data[1] != 'x' {
		return nil, errors.New(`a bytea that does not start with \x (bytea_output must be hex)`)
	}
	out := make([]byte, hex.DecodedLen(len(v.data)-2))
	if _, err := hex.Decode(out, v.data[2:]); err != nil {
		return nil, errors.New("a bytea with other than hexadecimal digits")
	}
	return out, nil
}

func (v value) time() (time.Time, error) {
	if v.binary {
		if len(v.data) != 8 {
			return time.Time{}, fmt.Errorf("a timestamp of %d bytes: want 8", len(v.data))
		}
		micros := int64(binary.BigEndian.Uint64(v.data))
		switch micros {
		case math.MaxInt64:
			return pgtime.Far(), nil
		case math.MinInt64:
			return pgtime.Past(), nil
		}
		const epoch = 946_684_800 // 2000-01-01, Postgres' epoch, in Unix seconds
		return time.Unix(epoch+micros/1e6, micros%1e6*1e3).UTC(), nil
	}
	switch s := string(v.data); s {
	case "infinity":
		return pgtime.Far(), nil
	case "-infinity":
		return pgtime.Past(), nil
	default:
		return isoTime(s)
	}
}

// timeOrNull is time for a column that may be null. The reader of a null is not called.
func (v value) timeOrNull() (*time.Time, error) {
	t, err := v.time()
	return &t, err
}

// isoTime parses a time as Postgres prints it. The year has up to six digits, and a year before 1 has the suffix BC. Go
// parses only years of four digits, so it parses the same day of another year: the calendar repeats after 400 years.
func isoTime(s string) (time.Time, error) {
	s, before := strings.CutSuffix(s, " BC")
	digits, rest, _ := strings.Cut(s, "-")
	year, err := strconv.Atoi(digits)
	if before {
		year = 1 - year
	}
	near := 2000 + (year%400+400)%400
	for _, offset := range [...]string{"-07", "-07:00", "-07:00:00"} {
		t, wrong := time.Parse("2006-01-02 15:04:05.999999"+offset, fmt.Sprintf("%d-%s", near, rest))
		if err == nil && wrong == nil {
			return t.AddDate(year-near, 0, 0).UTC(), nil
		}
	}
	return time.Time{}, errors.New("not a timestamp in ISO style")
}

// interner returns one string for equal bytes, because the same routing keys and exchanges come in many rows.
type interner struct{ seen map[string]string }

func (in *interner) string(b []byte) string {
	if s, ok := in.seen[string(b)]; ok { // no allocation: the compiler optimises the conversion
		return s
	}
	const most, longest = 4096, 255 // new keys in every message must not make it grow
	if len(b) > longest {
		return string(b)
	}
	if in.seen == nil || len(in.seen) >= most {
		in.seen = make(map[string]string)
	}
	s := string(b)
	in.seen[s] = s
	return s
}
