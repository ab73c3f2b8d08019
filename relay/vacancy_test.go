package relay

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// The times are from the start of the relay.
func TestOlderRowsWaitFromTheTimeTheSlotWasFree(t *testing.T) {
	began := time.Now()
	type look struct {
		at     time.Duration
		owned  bool
		unused time.Duration // according to the server; 0: it does not know
	}
	const ms = time.Millisecond
	for name, one := range map[string]struct {
		looks []look
		taken time.Duration
		want  time.Duration
	}{
		"before Postgres 17, since the first look": {
			[]look{{at: 0}, {at: 250 * ms}, {at: 500 * ms}}, 510 * ms, 0,
		},
		"since it saw no owner any more": {
			[]look{{at: 0}, {at: 250 * ms, owned: true}, {at: 500 * ms}, {at: 750 * ms}}, 760 * ms, 500 * ms,
		},
		"the server knows of an hour": {
			[]look{{at: 0, unused: time.Hour}}, 10 * ms, -time.Hour,
		},
		"the owner ended between two looks": {
			[]look{{at: 0, owned: true}, {at: 250 * ms, unused: 100 * ms}}, 260 * ms, 150 * ms,
		},
		"what the server said last counts": {
			[]look{{at: 0, unused: time.Hour}, {at: 250 * ms, owned: true}, {at: 500 * ms}}, 510 * ms, 500 * ms,
		},
		"the server's clock went back": {
			[]look{{at: 0}, {at: 250 * ms, unused: -time.Hour}}, 260 * ms, 0,
		},
		"this process was paused after its last look, and another relay may have owned the slot": {
			[]look{{at: 0, unused: time.Hour}}, 10 * time.Second, 10 * time.Second,
		},
	} {
		var v vacancy
		for _, l := range one.looks {
			seen := slot.Slot{Name: "s"}
			if l.owned {
				seen.Process.PID = 1
			}
			if seconds := l.unused.Seconds(); seconds != 0 {
				seen.InactiveSeconds = &seconds
			}
			v.saw(seen, began.Add(l.at))
		}
		if got := v.since(began.Add(one.taken)).Sub(began); got != one.want {
			t.Errorf("%s: free since %s, want %s", name, got, one.want)
		}
	}
}

// The server's answer is that of its version: before Postgres 17 it does not know.
func TestAServerTellsHowLongItsSlotWasUnused(t *testing.T) {
	i := newInstance(t)
	stream := i.open()
	var major int
	err := i.db.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major)
	if err != nil {
		t.Fatal(err)
	}
	var v vacancy
	look := func() time.Duration {
		seen, err := stream.Slot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v.saw(seen, time.Now())
		return v.unused
	}
	first := look()
	if major < 17 {
		if first != 0 {
			t.Errorf("Postgres %d: unused for %s", major, first)
		}
		return
	}
	await.Until(t, "a time that grows", func() bool { return first > 0 && look() > first })
	if since := v.since(v.looked); !since.Before(v.free) {
		t.Errorf("free since %s, and this relay has only looked at %s", since, v.free)
	}
	if _, err := stream.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.Connect(t.Context(), i.config.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	owned, err := slot.Read(t.Context(), conn, i.config.Slot)
	if err != nil {
		t.Fatal(err)
	}
	if v.saw(owned, time.Now()); v != (vacancy{}) {
		t.Errorf("after a start: %+v", v)
	}
}
