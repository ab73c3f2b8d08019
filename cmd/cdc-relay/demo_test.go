package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// onScreen is a command in this process with one terminal, which gets these signals.
func onScreen(env environment, stdin io.Reader, screen io.Writer, signals chan os.Signal, args ...string) process {
	tty := terminal.New(stdin, screen, screen, false)
	return process{args: append([]string{"cdc-relay"}, args...), terminal: tty, lookupEnv: env.lookup, signals: signals}
}

// interrupted is an output that sends Ctrl-C when a text is written to it.
type interrupted struct {
	lockedBuffer
	at      string
	signals chan<- os.Signal
}

func (i *interrupted) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(i.at)) {
		i.signals <- syscall.SIGINT
	}
	return i.lockedBuffer.Write(p)
}

// It waits for RabbitMQ when Ctrl-C is typed.
func TestAnInterruptedDrainSaysWhatIsLeft(t *testing.T) {
	env, _ := withTables(t, "--mode", "poll")
	signals := make(chan os.Signal, 2)
	screen := &interrupted{at: "broker_down", signals: signals}
	args := []string{"drain", "--amqp-url", "amqp://127.0.0.1:1/", "--log-format", "text", "--send-timeout", "1h"}
	p := onScreen(env, strings.NewReader(""), screen, signals, args...)
	code := p.run(await.Context(t))
	text := screen.String()
	if code != exitFailed || !strings.HasSuffix(text, "cdc-relay: drain: stopped: the other rows wait in the table\n  hint: cdc-relay drain  # continues\n") ||
		strings.Contains(text, "drain done") {
		t.Errorf("exit code %d\n%s", code, text)
	}
}

// Finished batches stay, and the hint continues after them.
func TestAnInterruptedChangeSaysHowToContinue(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, conn, `INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
		SELECT i, now(), now(), gen_random_uuid(), 0, 1, 'r', '1' FROM generate_series(1, 2000) i`)
	copies := func() int { return query[int](t, conn, `SELECT count(DISTINCT message_id)::int FROM outbox`) }
	running := start(t, env, "resend", "--state", "published", "--all", "--yes", "--rate", "100")
	await.Until(t, "some are copied", func() bool { return copies() > 0 })
	running.signal(t, os.Interrupt)
	said := running.await(t, "stopped, with ")
	running.await(t, "hint: run it again with --after-id ")
	running.ends(t, exitFailed)
	done := copies()
	if left := show.Number(int64(2000-done)) + " rows left"; !strings.Contains(said, left) {
		t.Errorf("it says %q, want %s", said, left)
	}
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "published", "--all", "--yes", "--after-id", fmt.Sprint(done)),
		"resent "+show.Plural(int64(2000-done), "message"))
	if n := copies(); n != 2000 || query[int](t, conn, `SELECT count(*)::int FROM outbox`) != n {
		t.Errorf("%d messages", n)
	}
}

func TestASignalAnswersAQuestionWithNo(t *testing.T) {
	env, conn := withTables(t)
	execute(t, conn, insertDead, 1, uuid(1), nil)
	for _, test := range []struct {
		command []string
		notDone string
	}{
		{[]string{"teardown"}, "nothing was dropped"},
		{[]string{"delete", "--state", "dead", "1"}, "nothing was deleted"},
	} {
		t.Run(strings.Join(test.command, " "), func(t *testing.T) {
			stdin, typing := io.Pipe()
			signals := make(chan os.Signal, 2)
			screen := &interrupted{at: "[y/N] ", signals: signals}
			p := onScreen(env, stdin, screen, signals, test.command...)
			ended := make(chan int, 1)
			go func() { ended <- p.run(t.Context()) }()
			select {
			case code := <-ended:
				if code != exitFailed || !strings.Contains(screen.String(), "[y/N] \ncdc-relay: not confirmed: "+test.notDone) {
					t.Errorf("exit code %d\n%s", code, screen.String())
				}
			case <-time.After(await.Hang()):
				t.Errorf("the question is asked again:\n%s", screen.String())
			}
			_ = typing.Close()
		})
	}
	wantValue(t, conn, 1, "SELECT count(*) FROM outbox_dead_letter")
}

// A transaction that is open keeps Postgres from creating the slot. It ends when the person has been told.
func TestSetupSaysThatItWaitsForTheSlot(t *testing.T) {
	t.Parallel()
	env, _ := fresh(t)
	other := tabletest.Connect(t, env["CDC_RELAY_DATABASE_URL"])
	execute(t, other, "BEGIN")
	execute(t, other, "SELECT pg_current_xact_id()")
	var screen lockedBuffer
	p := onScreen(env, strings.NewReader(""), &screen, nil, "setup")
	ended := make(chan int, 1)
	go func() { ended <- p.run(await.Context(t)) }()
	await.Until(t, "setup says what it waits for", func() bool {
		return strings.Contains(screen.String(), "still waiting for slot "+env["CDC_RELAY_SLOT"]+": ")
	})
	execute(t, other, "COMMIT")
	if code := <-ended; code != exitDone || !strings.Contains(screen.String(), "created slot") {
		t.Errorf("exit code %d\n%s", code, screen.String())
	}
}
