// Package pgsnapshot reads what pg_current_snapshot says: which transactions a statement can see.
package pgsnapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// Snapshot says which transactions a statement can see (pg_current_snapshot): all below xmin, and those below xmax that
// are not in progress.
type Snapshot struct {
	xmin, xmax uint64
	inProgress []uint64 // sorted
}

// Parse parses the text form, xmin:xmax:xip,xip,….
func Parse(s string) (Snapshot, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return Snapshot{}, fmt.Errorf("snapshot %q: want xmin:xmax:list", s)
	}
	var numbers []uint64
	for _, text := range append(parts[:2:2], strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' })...) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return Snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers[2:])
	return Snapshot{xmin: numbers[0], xmax: numbers[1], inProgress: numbers[2:]}, nil
}

// ScanText implements pgtype.TextScanner.
func (s *Snapshot) ScanText(v pgtype.Text) (err error) {
	*s, err = Parse(v.String)
	return err
}

// Finished reports whether a transaction had ended for the snapshot; its rows were visible if it committed. The xid has
// the 32 bits of the stream; the epoch is the one nearest to the snapshot.
func (s Snapshot) Finished(xid uint32) bool {
	full := s.widen(xid)
	if full < s.xmin {
		return true
	}
	if full >= s.xmax {
		return false
	}
	_, running := slices.BinarySearch(s.inProgress, full)
	return !running
}

// InProgress returns the 32-bit xids of the transactions in progress. It omits those that began after the last one
// ended.
func (s Snapshot) InProgress() []uint32 {
	xids := make([]uint32, len(s.inProgress))
	for i, xid := range s.inProgress {
		xids[i] = uint32(xid)
	}
	return xids
}

func (s Snapshot) widen(xid uint32) uint64 {
	const epoch, half = 1 << 32, 1 << 31
	full := s.xmax&^(epoch-1) | uint64(xid)
	switch {
	case full > s.xmax+half && full >= epoch:
		return full - epoch
	case full+half < s.xmax:
		return full + epoch
	}
	return full
}
