package outbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Snapshot says which transactions a statement could see (pg_current_snapshot):
// every one below xmin, and those below xmax that are not in progress.
type Snapshot struct {
	xmin, xmax uint64
	inProgress []uint64 // sorted
}

// ParseSnapshot reads the text form, xmin:xmax:xip,xip,….
func ParseSnapshot(s string) (Snapshot, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return Snapshot{}, fmt.Errorf("snapshot %q: want xmin:xmax:list", s)
	}
	var snapshot Snapshot
	var err error
	if snapshot.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
	}
	if snapshot.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
	}
	for xid := range strings.SplitSeq(parts[2], ",") {
		if xid == "" {
			continue
		}
		n, err := strconv.ParseUint(xid, 10, 64)
		if err != nil {
			return Snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
		}
		snapshot.inProgress = append(snapshot.inProgress, n)
	}
	slices.Sort(snapshot.inProgress)
	return snapshot, nil
}

// Finished tells whether a transaction was over for the snapshot: what it wrote
// was visible, if it committed. The xid is the 32 bits that the stream carries;
// the epoch is the one that brings it nearest to the snapshot.
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

// InProgress lists the transactions that were running, as the stream names them: all that had
// begun before the last one ended.
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
