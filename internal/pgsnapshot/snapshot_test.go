package pgsnapshot

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSnapshotSaysWhichTransactionsAreFinished(t *testing.T) {
	for _, c := range []struct {
		snapshot string
		xid      uint32
		want     bool
	}{
		{"100:100:", 99, true},
		{"100:100:", 100, false},
		{"100:105:100,103", 100, false},
		{"100:105:100,103", 101, true},
		{"100:105:100,103", 103, false},
		{"100:105:100,103", 104, true},
		{"100:105:100,103", 105, false},
		{"4294967290:4294967300:4294967295", 4294967294, true}, // the epoch changes between xmin and xmax
		{"4294967290:4294967300:4294967295", 4294967295, false},
		{"4294967290:4294967300:4294967295", 3, true},  // 4294967299
		{"4294967290:4294967300:4294967295", 4, false}, // 4294967300
		{"4294967300:4294967300:", 4294967295, true},   // of the previous epoch
		{"4294967290:4294967290:", 3, false},           // of the next epoch
	} {
		s, err := Parse(c.snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Finished(c.xid); got != c.want {
			t.Errorf("%s: Finished(%d) = %v", c.snapshot, c.xid, got)
		}
	}
}

func TestSnapshotAgreesWithFullTransactionIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xmin := rapid.Uint64Range(3, 1<<40).Draw(t, "xmin")
		xmax := xmin + rapid.Uint64Range(0, 1000).Draw(t, "width")
		var running []uint64
		var texts []string
		for xid := xmin; xid < xmax; xid++ {
			if rapid.Bool().Draw(t, "running") {
				running, texts = append(running, xid), append(texts, fmt.Sprint(xid))
			}
		}
		// A streamed xid is never 2^31 transactions from the snapshot: Postgres would have stopped.
		xid := rapid.Uint64Range(max(3, xmax-min(xmax, 1<<31-1)), xmax+1<<31-1).Draw(t, "xid")
		s, err := Parse(fmt.Sprintf("%d:%d:%s", xmin, xmax, strings.Join(texts, ",")))
		if err != nil {
			t.Fatal(err)
		}
		want := xid < xmin || xid < xmax && !slices.Contains(running, xid)
		if got := s.Finished(uint32(xid)); got != want {
			t.Fatalf("Finished(%d) = %v", xid, got)
		}
		if got := s.InProgress(); len(got) != len(running) || len(got) > 0 && uint64(got[0])&0xffffffff != running[0]&0xffffffff {
			t.Fatalf("in progress: %v, want %v", got, running)
		}
	})
}

func TestMalformedSnapshotIsAnError(t *testing.T) {
	for _, text := range []string{"", "1", "1:2", "1:2:3:4", "a:2:", "1:b:", "1:2:c", "-1:2:"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
