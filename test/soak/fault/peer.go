package fault

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// peerRestart is the pause before a peer that has ended by itself is started again.
const peerRestart = time.Second

// peerCommand returns a call of Config.Peer.
func (w *World) peerCommand(verb, database, broker string) *exec.Cmd {
	cmd := exec.Command(w.Peer, verb)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "AMQP_URL="+broker)
	return cmd
}

// setUpPeer creates the peer's tables.
func (w *World) setUpPeer() error {
	if output, err := w.peerCommand("setup", w.Database, w.Broker).CombinedOutput(); err != nil {
		return fmt.Errorf("%s setup: %w: %s", w.Peer, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// restartLater starts a peer again after a pause, as a service manager does, unless somebody else starts or stops it
// meanwhile.
func (r *Relay) restartLater(run *relayRun) {
	time.AfterFunc(peerRestart, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.run != run || !r.wanted {
			return
		}
		if err := r.start(r.command()); err != nil {
			r.world.Log(err.Error())
		}
	})
}

// Spent returns the processor time of all ended processes of the relays, and how often one of them ended by itself.
func (w *World) Spent() (processor time.Duration, exits int) {
	for _, r := range w.Relays {
		r.mu.Lock()
		processor += r.processor
		exits += r.exits
		r.mu.Unlock()
	}
	return processor, exits
}

// awaitPeer waits until a peer runs.
func (w *World) awaitPeer(ctx context.Context) (*Relay, error) {
	var running *Relay
	err := poll(ctx, func() (bool, error) {
		for _, r := range w.Relays {
			if r.Running() {
				running = r
			}
		}
		return running != nil, nil
	})
	return running, err
}
