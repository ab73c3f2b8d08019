package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
)

// A person sees how many messages leave again. Scripts need no flag for messages that have not arrived.
func TestResendAsksOnATerminal(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, available_at, attempts) VALUES ('r', '1', now() + interval '1 hour', 2)`)
	keyboard, screen := pseudoTerminal(t)
	for _, answer := range []string{"n", "y"} {
		if _, err := keyboard.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		p := process{
			args:     strings.Fields("cdc-relay resend --state retrying --all"),
			terminal: terminal.New(screen, &bytes.Buffer{}, &stderr, true), lookupEnv: env.lookup, environ: env.pairs,
		}
		if code := p.run(t.Context()); (code == exitDone) != (answer == "y") || !strings.Contains(stderr.String(), "Make 1 message of public.outbox at ") {
			t.Errorf("%s: exit code %d, %s", answer, code, stderr.String())
		}
	}
}

func pseudoTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	open := func(name string) *os.File {
		file, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
		must(t, err)
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	keyboard = open("/dev/ptmx")
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	must(t, err)
	return keyboard, open(fmt.Sprintf("/dev/pts/%d", number))
}
