package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/bench/load"
	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

// peerCases let each subject drain the same backlog. All are inserted, started and measured alike, also cdc-relay.
func peerCases(s Settings) (cases []Case) {
	for _, one := range subject.All() {
		cases = append(cases, Case{
			Name: "peer-" + one.Name, About: one.Name + " drains a backlog of its own table",
			Beside: "publish", Peer: true,
			run: drainPeer(backlog{messages: s.Messages, spec: load.Spec{Bytes: s.Bytes}, peer: &one}),
		})
	}
	return cases
}

// drainPeer ends when the last message has arrived, and the program has recorded that none waits.
func drainPeer(b backlog) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.inWorld(ctx, b, func(ctx context.Context, w *world, arrivals *load.Arrivals) error {
			if output, err := w.peer(*b.peer, "setup").CombinedOutput(); err != nil {
				return fmt.Errorf("%s setup: %w: %s", b.peer.Program(), err, strings.TrimSpace(string(output)))
			}
			if err := w.fillPeer(ctx, b); err != nil {
				return err
			}
			control := []int{int(w.control.PgConn().PID())} // its queries are no work of the program
			before, err := w.usage(control)
			if err != nil {
				return err
			}
			child, err := startChild(b.peer.Name, w.logFile(b.peer.Name), w.peer(*b.peer, "run"), nil)
			if err != nil {
				return err
			}
			return errors.Join(r.finishPeer(ctx, w, child, arrivals, before, b.peer.Form.Waiting), child.stop())
		})
	}
}

// peer returns a call of a program. cdc-relay has other variables than the other programs, and no two share one.
func (w *world) peer(s subject.Subject, verb string) *exec.Cmd {
	program := filepath.Join(filepath.Dir(w.site.Self), s.Program())
	if s.Name == subject.Relay {
		program = w.program
	}
	cmd := exec.Command(program, verb)
	cmd.Env = append(w.relayEnvironment(), "CDC_RELAY_HTTP_ADDR=127.0.0.1:0",
		"DATABASE_URL="+w.database, "AMQP_URL="+w.amqp)
	return cmd
}

// fillPeer inserts the backlog with the statement that an application would use.
func (w *world) fillPeer(ctx context.Context, b backlog) error {
	const rowsPerTransaction = 1000
	filler := w.spec.Filler()
	for first := 0; first < b.messages; first += rowsPerTransaction {
		var batch pgx.Batch
		for n := first; n < min(first+rowsPerTransaction, b.messages); n++ {
			id := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
			batch.Queue(b.peer.Form.Insert, id, w.spec.Queue(n), nil, string(w.spec.Body(n, filler)))
		}
		if err := w.control.SendBatch(ctx, &batch).Close(); err != nil {
			return fmt.Errorf("insert for %s: %w", b.peer.Name, err)
		}
	}
	return w.rest(ctx)
}

func (r *run) finishPeer(
	ctx context.Context, w *world, child *child, arrivals *load.Arrivals, before usage, waiting string,
) error {
	if err := r.awaitArrivals(ctx, child, arrivals); err != nil {
		return err
	}
	if err := w.awaitNone(ctx, waiting); err != nil {
		return err
	}
	r.setTime(arrivals, time.Now())
	after, err := w.usage([]int{int(w.control.PgConn().PID())}, child.pid())
	if err != nil {
		return err
	}
	r.result.CPU = after.since(before).perMillion(r.result.Messages)
	memory, err := gauge.PeakMemory(child.pid())
	r.result.MemoryMB = megabytes(memory)
	return err
}
