package fallback

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Somebody updates ordering_key between find and lock.
func TestAClaimReleasesARowWhoseKeyHasChanged(t *testing.T) {
	a, b := "a", "b"
	for name, found := range map[string]*string{"without a key": nil, "with another key": &a} {
		t.Run(name, func(t *testing.T) {
			memory := core.New(core.DefaultLimits(8), core.Policy{})
			memory.PublisherReady(true)
			rows := []outbox.Candidate{
				{Ref: outbox.Ref{ID: 1}, OrderingKey: found, Ready: true},
				{Ref: outbox.Ref{ID: 2}, OrderingKey: found, Ready: true},
			}
			most := core.Most{Rows: 8, Bytes: 1 << 20}
			claim, _ := memory.ChooseRows(rows, true, most)
			if found != nil {
				claim = memory.ChooseRuns(core.Found{Runs: outbox.Runs(rows), Each: 8}, 1, most)
			}
			messages := []*outbox.Message{{Row: outbox.Row{ID: 1, OrderingKey: &b}}, {Row: outbox.Row{ID: 2, OrderingKey: found}}}
			publish := claim.Locked(core.Lock{Messages: messages, Alive: memory.Clock(), Owned: true}).Publish
			if late := found != nil; len(publish) == 1 == late || len(publish) == 1 && publish[0].ID != 2 {
				t.Errorf("%d messages are published", len(publish))
			}
			for _, m := range publish {
				memory.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
			}
			released := 0
			for _, s := range claim.End() {
				if s.Decision.Action == outbox.Release {
					released++
				}
			}
			if claim.Done(true); memory.View().InFlight != 0 || released != 2-len(publish) {
				t.Errorf("%d rows are released, and %d are in flight", released, memory.View().InFlight)
			}
		})
	}
}

// aliveTx is a transaction that the server has ended, if err is set.
type aliveTx struct {
	dueTx
	err error
}

func (a aliveTx) Alive(context.Context) error { return a.err }

// A lock that reads many bytes over a slow connection takes longer than a claim publishes.
func TestAClaimPublishesAfterASlowLockIfItStillHasTheRows(t *testing.T) {
	for _, ended := range []error{nil, errFailed} {
		memory := core.New(core.DefaultLimits(8), core.Policy{})
		memory.PublisherReady(true)
		now := time.Now()
		var sent []*outbox.Message
		s := &Sweeper{
			Core: memory, Table: &dueTable{},
			Apply: func(out core.Out) { sent = append(sent, out.Publish...) }, start: func(*openClaim) {},
			Lock: func(context.Context, []int64, bool, outbox.Fresh) (Transaction, error) {
				now = now.Add(10 * time.Second)
				return aliveTx{dueTx{[]*outbox.Message{{Row: outbox.Row{ID: 1}}}}, ended}, nil
			},
		}
		memory.Clock = func() time.Time { return now }
		chosen, _ := memory.ChooseRows([]outbox.Candidate{{Ref: outbox.Ref{ID: 1}, Ready: true}}, false, core.Most{Rows: 8, Bytes: 1 << 20})
		err := s.claim(t.Context(), Role{}, chosen)
		if (err == nil) != (ended == nil) || len(sent) == 1 != (ended == nil) || memory.View().InFlight != len(sent) {
			t.Errorf("the transaction ended with %v: %d messages are published, %d rows in flight, %v", ended, len(sent), memory.View().InFlight, err)
		}
	}
}
