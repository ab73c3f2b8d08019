package handler

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

// The kernel gives this process the orphans of its children, as it does with process 1.
func TestReapsTheProcessesThatHandlersLeave(t *testing.T) {
	inherit := func(orphans uintptr) {
		const setChildSubreaper = 36
		if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, orphans, 0); err != 0 {
			t.Error(err)
		}
	}
	inherit(1)
	t.Cleanup(func() { inherit(0) })
	script := filepath.Join(t.TempDir(), "handler")
	err := os.WriteFile(script, []byte(`#!/bin/sh
while IFS= read -r line; do
  (true &)
  (setsid true &)
  case "$line" in *crash*) exit 3 ;; esac
  echo "$line" | sed 's/.*"message_id":"\([^"]*\)".*/{"message_id":"\1","outcome":"confirmed"}/'
done
`), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Command: []string{script}, ReapOrphans: true})
	if err != nil {
		t.Fatal(err)
	}
	var k publishtest.Maker
	r := publishtest.Start(t, p)
	for range 2 {
		r.AwaitPhase(t, publish.Ready)
		mark := r.Mark()
		var messages []*outbox.Message
		for range 5 {
			messages = append(messages, k.Make("x", "k", `{}`))
		}
		publishtest.AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
		crash := k.Make("x", "k", `{"do":"crash"}`)
		publishtest.AllAre(t, r.Answers(t, crash), outbox.Unknown)
		r.AwaitSince(t, mark, publish.Connecting)
		r.Mu.Lock()
		for _, s := range r.States[mark:] {
			if s.Phase == publish.Connecting && !strings.Contains(s.Detail, "exit status 3") {
				t.Errorf("the state says %q", s.Detail)
			}
		}
		r.Mu.Unlock()
	}
	await.Until(t, "no zombie is left", func() bool { return zombies(t) == 0 })
}

func zombies(t *testing.T) (n int) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var state string
		var parent int
		_, after, _ := strings.Cut(string(text), ") ")
		if _, err := fmt.Sscan(after, &state, &parent); err == nil && state == "Z" && parent == os.Getpid() {
			n++
		}
	}
	return n
}
