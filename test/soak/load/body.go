package load

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// about is the description of a message in its own body. With it a consumer detects damage without knowing what was
// written.
type about struct {
	Run        string          `json:"run"`
	ID         string          `json:"id"`
	Kind       history.Kind    `json:"kind"`
	Key        string          `json:"key,omitempty"`
	Seq        int             `json:"seq,omitempty"`
	Exchange   string          `json:"exchange"`
	RoutingKey string          `json:"routing_key"`
	Headers    json.RawMessage `json:"headers,omitempty"`
	Properties json.RawMessage `json:"properties,omitempty"`
}

// The body ends with a checksum of everything before it: in JSON, sumStart, 16 hexadecimal digits and sumEnd; in
// binary, 8 bytes.
const (
	sumStart  = `, "sum" :"`
	sumDigits = 16
	sumEnd    = "\"}\n"
	sumBytes  = 8
)

func checksum(b []byte) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write(b) // never fails
	return hash.Sum64()
}

// jsonBody formats its JSON as no encoder would, because the relay promises to keep every byte.
func jsonBody(a *about, size int, seed uint64) ([]byte, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(len(text) + size + 64)
	fmt.Fprintf(&b, `{ "about":%s,  "fill": "\u0000\/é😀 `, text)
	b.Write(letters(size, seed))
	b.WriteString(`"`)
	sum := checksum(b.Bytes())
	fmt.Fprintf(&b, "%s%016x%s", sumStart, sum, sumEnd)
	return b.Bytes(), nil
}

// binaryBody has the length of the description, the description, random bytes, and the checksum.
func binaryBody(a *about, size int, seed uint64) ([]byte, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, len(text)+size+16), uint32(len(text)))
	b = append(b, text...)
	b = append(b, noise(size, seed)...)
	return binary.BigEndian.AppendUint64(b, checksum(b)), nil
}

func noise(size int, seed uint64) []byte {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func letters(size int, seed uint64) []byte {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
	b := noise(size, seed)
	for i := range b {
		b[i] = alphabet[b[i]&63]
	}
	return b
}

// readBody returns the description in a body. Its error says what is wrong with the bytes.
func readBody(body []byte, isBinary bool) (*about, error) {
	text, err := jsonAbout, error(nil)
	if isBinary {
		text = binaryAbout
	}
	described, err := text(body)
	if err != nil {
		return nil, err
	}
	var a about
	if err := json.Unmarshal(described, &a); err != nil {
		return nil, fmt.Errorf("the body cannot be read: %w", err)
	}
	return &a, nil
}

func jsonAbout(body []byte) ([]byte, error) {
	const tail = len(sumStart) + sumDigits + len(sumEnd)
	if len(body) < tail {
		return nil, fmt.Errorf("the body has %d bytes only", len(body))
	}
	content, end := body[:len(body)-tail], string(body[len(body)-tail:])
	sum, err := strconv.ParseUint(end[len(sumStart):len(sumStart)+sumDigits], 16, 64)
	if err != nil || end[:len(sumStart)] != sumStart || end[len(sumStart)+sumDigits:] != sumEnd {
		return nil, fmt.Errorf("the body of %d bytes does not end as written", len(body))
	}
	if checksum(content) != sum {
		return nil, fmt.Errorf("the body of %d bytes is not as written: its checksum differs", len(body))
	}
	var document struct{ About json.RawMessage }
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("the body is not JSON: %w", err)
	}
	return document.About, nil
}

func binaryAbout(body []byte) ([]byte, error) {
	if len(body) < 4+sumBytes {
		return nil, fmt.Errorf("the body has %d bytes only", len(body))
	}
	content, end := body[:len(body)-sumBytes], body[len(body)-sumBytes:]
	if checksum(content) != binary.BigEndian.Uint64(end) {
		return nil, fmt.Errorf("the body of %d bytes is not as written: its checksum differs", len(body))
	}
	length := binary.BigEndian.Uint32(content)
	if uint64(length) > uint64(len(content)-4) {
		return nil, fmt.Errorf("the body of %d bytes claims %d bytes of description", len(body), length)
	}
	return content[4 : 4+length], nil
}

// aboutRow returns the description of a row.
func aboutRow(run string, r *row) *about {
	a := &about{
		Run: run, ID: r.ID.String(), Kind: r.Kind, Key: r.Key, Seq: r.Seq,
		RoutingKey: r.routingKey, Headers: json.RawMessage(r.headers), Properties: json.RawMessage(r.properties),
	}
	if r.exchange != nil {
		a.Exchange = *r.exchange
	}
	return a
}

// parseID parses an AMQP message id; a text that is not a UUID gives the zero id.
func parseID(text string) (outbox.UUID, error) { return outbox.ParseUUID([]byte(text)) }
