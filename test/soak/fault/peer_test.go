package fault

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// shortLived is a peer whose process ends at once, and a file with a line for each start.
func shortLived(t *testing.T) (relay *Relay, starts func() int) {
	t.Helper()
	folder := t.TempDir()
	program, file := filepath.Join(folder, "peer"), filepath.Join(folder, "starts")
	script := "#!/bin/sh\necho \"$1 $DATABASE_URL\" >>" + file + "\nexit 1\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	world := &World{Config: Config{
		Peer: program, Folder: folder, Log: func(text string) { t.Log(text) },
		Violation: func(text string) { t.Errorf("violation: %s", text) },
	}}
	relay = &Relay{Name: "peer", world: world, database: "postgres://here"}
	world.Relays = []*Relay{relay}
	return relay, func() int {
		content, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return strings.Count(string(content), "run postgres://here\n")
	}
}

func TestAPeerThatEndsIsStartedAgainUntilItIsStopped(t *testing.T) {
	relay, starts := shortLived(t)
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the peer was started again", func() bool { return starts() >= 2 })
	for _, end := range []func(context.Context) error{relay.Stop, relay.Kill} {
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
		relay.mu.Lock()
		if relay.restart != nil || !relay.run.ended() {
			t.Error("a stopped peer will be started again")
		}
		relay.mu.Unlock()
	}
	if processor, exits := relay.world.Spent(); exits < 1 || processor <= 0 {
		t.Errorf("it ended by itself %d times and took %s", exits, processor)
	}
	before := starts()
	if err := relay.Start(); err != nil {
		t.Error(err)
	}
	await.Until(t, "the peer was started by hand", func() bool { return starts() > before })
	if err := relay.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}
