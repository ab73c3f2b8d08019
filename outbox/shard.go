package outbox

import (
	"fmt"
	"strconv"
	"strings"
)

// Shard is one part of a table's rows, for relays that split its stream. Each row is in exactly one of Of shards, and
// all rows of an ordering key are in the same shard. The zero Shard is the whole table.
type Shard struct {
	Index int // from 0
	Of    int
}

// MostShards bounds the number of shards: each has a slot, and the server decodes all its WAL for each slot.
const MostShards = 64

// ParseShard parses INDEX/OF, such as "0/4". "0/1" is the zero Shard.
func ParseShard(text string) (Shard, error) {
	index, of, found := strings.Cut(text, "/")
	var s Shard
	var err error
	if s.Index, err = strconv.Atoi(index); err == nil {
		s.Of, err = strconv.Atoi(of)
	}
	switch {
	case !found || err != nil || s.String() != text:
		return Shard{}, fmt.Errorf("%q: want INDEX/OF, from 0/4 to 3/4 for four shards", text)
	case s.Of < 1 || s.Of > MostShards:
		return Shard{}, fmt.Errorf("%q: want 1 to %d shards", text, MostShards)
	case s.Index < 0 || s.Index >= s.Of:
		return Shard{}, fmt.Errorf("%q: of %d shards the first is 0/%d and the last %d/%d",
			text, s.Of, s.Of, s.Of-1, s.Of)
	case s.Of == 1:
		return Shard{}, nil
	}
	return s, nil
}

// ShardsOf returns all shards of a table that is split into n; for 1 or less, the whole table.
func ShardsOf(n int) []Shard {
	if n <= 1 {
		return []Shard{{}}
	}
	shards := make([]Shard, n)
	for i := range shards {
		shards[i] = Shard{Index: i, Of: n}
	}
	return shards
}

// Whole reports whether the shard is the whole table.
func (s Shard) Whole() bool { return s.Of <= 1 }

// String returns the form that ParseShard parses.
func (s Shard) String() string { return fmt.Sprintf("%d/%d", s.Index, max(s.Of, 1)) }

// NameSuffix returns the end of the names of slot and publication; "" for the whole table.
func (s Shard) NameSuffix() string {
	if s.Whole() {
		return ""
	}
	return fmt.Sprintf("_%d_of_%d", s.Index, s.Of)
}

// shardHash hashes the bytes of the key, independent of collations, or the id of a row without a key. Hashes and their
// remainders may be negative.
const shardHash = `coalesce(pg_catalog.hashtextextended({row}ordering_key COLLATE "C", 0), ` +
	`pg_catalog.hashint8extended({row}id, 0))`

// Condition returns SQL that is true for the rows of the shard and false for all others. It uses only what a row filter
// may use. Row is the prefix of the columns ("r." or ""). For the whole table it is "true".
func (s Shard) Condition(row string) string {
	if s.Whole() {
		return "true"
	}
	hash := strings.ReplaceAll(shardHash, "{row}", row)
	return fmt.Sprintf("(%[1]s %% %[2]d::bigint + %[2]d) %% %[2]d::bigint = %[3]d", hash, s.Of, s.Index)
}

// Printed returns Condition("") as Postgres 15 to 18 prints it; "" for the whole table.
func (s Shard) Printed() string {
	if s.Whole() {
		return ""
	}
	const hash = `COALESCE(hashtextextended((ordering_key COLLATE "C"), (0)::bigint), hashint8extended(` +
		`id, (0)::bigint))`
	return fmt.Sprintf("((((%[1]s %% (%[2]d)::bigint) + %[2]d) %% (%[2]d)::bigint) = %[3]d)", hash, s.Of, s.Index)
}
