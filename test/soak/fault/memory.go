package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// outOfMemory limits the leader to the memory that it has, and inserts a row that needs more. The row is scheduled
// years ahead, so that nobody publishes it.
func outOfMemory() Fault {
	return Fault{
		Name: "relay-out-of-memory", Needs: Linux, Duplicates: inFlight(1),
		About: "the leader is limited to its current memory, receives a row of 64 MB, and dies",
		Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
			leader, err := w.AwaitLeader(ctx)
			if err != nil {
				return "", err
			}
			died := leader.exhaust(ctx, w)
			return leader.Name, errors.Join(died, holdThen(ctx, hold, func(ctx context.Context) error {
				return errors.Join(leader.Kill(ctx), w.Exec(ctx, w.deleteGiantSQL()), w.Start())
			}))
		},
	}
}

// giantKey is the routing key of the large row.
const giantKey = "cdc-relay-soak.giant"

func (w *World) deleteGiantSQL() string {
	return fmt.Sprintf("DELETE FROM %s WHERE routing_key = '%s'", w.Table.SQL(), giantKey)
}

// exhaust makes the relay run out of memory and waits until it has died.
func (r *Relay) exhaust(ctx context.Context, w *World) error {
	run := r.newest()
	if run == nil {
		return fmt.Errorf("%s does not run", r.Name)
	}
	if err := limitMemory(ctx, run.cmd.Process.Pid); err != nil {
		return err
	}
	r.ask(run) // its death is expected
	const giant = `INSERT INTO %s (routing_key, payload_bytes, available_at)
		VALUES ('%s', convert_to(repeat('x', 64 * 1024 * 1024), 'UTF8'), now() + interval '10 years')`
	if err := w.Exec(ctx, fmt.Sprintf(giant, w.Table.SQL(), giantKey)); err != nil {
		return err
	}
	select {
	case <-run.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(hangTimeout):
		return fmt.Errorf("%s lives %s after it ran out of memory", r.Name, hangTimeout)
	}
}

// limitMemory limits the process's data memory to its current size plus a little.
func limitMemory(ctx context.Context, pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return fmt.Errorf("read what memory the relay has: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmData:")
	var kB int
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		return fmt.Errorf("read what memory the relay has: %w", err)
	}
	const spare = 8 << 10 // kB
	limit := fmt.Sprintf("--data=%d", (kB+spare)<<10)
	output, err := exec.CommandContext(ctx, "prlimit", "--pid", fmt.Sprint(pid), limit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("prlimit (of util-linux): %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}
