package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/test/await"
)

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
	env, _ := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	signals := make(chan os.Signal, 2)
	screen := &interrupted{at: "broker_down", signals: signals}
	p := process{
		args: []string{
			"cdc-relay", "drain", "--amqp-url", "amqp://127.0.0.1:1/", "--log-format", "text", "--send-timeout", "1h",
		},
		terminal:  terminal.New(strings.NewReader(""), screen, screen, false),
		lookupEnv: env.lookup,
		signals:   signals,
	}
	code := p.run(await.Context(t))
	text := screen.String()
	if code != exitFailed || !strings.HasSuffix(text, "cdc-relay: drain: stopped: the rows that are left wait in the table\n  hint: cdc-relay drain  # continues\n") ||
		strings.Contains(text, "drain done") {
		t.Errorf("exit code %d\n%s", code, text)
	}
}

func TestASignalAnswersAQuestionWithNo(t *testing.T) {
	env, conn := fresh(t)
	want(t, cdcRelay(t, env, "setup"), exitDone)
	execute(t, conn, `INSERT INTO outbox_dead_letter (id, message_id, routing_key, payload, created_at, attempts, schema_version, failure_reason)
		VALUES (1, gen_random_uuid(), 'k', '1', now(), 1, 1, 'nack')`)
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
			p := process{
				args:      append([]string{"cdc-relay"}, test.command...),
				terminal:  terminal.New(stdin, screen, screen, false),
				lookupEnv: env.lookup,
				signals:   signals,
			}
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
	if left := query[int](t, conn, "SELECT count(*) FROM outbox_dead_letter"); left != 1 {
		t.Errorf("%d dead letters are left", left)
	}
}

// A transaction that is open keeps Postgres from creating the slot. It ends when the person has been told.
func TestSetupSaysThatItWaitsForTheSlot(t *testing.T) {
	t.Parallel()
	env, _ := fresh(t)
	other, err := pgx.Connect(t.Context(), env["CDC_RELAY_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	execute(t, other, "BEGIN")
	execute(t, other, "SELECT pg_current_xact_id()")
	var screen lockedBuffer
	p := process{
		args:      []string{"cdc-relay", "setup"},
		terminal:  terminal.New(strings.NewReader(""), &screen, &screen, false),
		lookupEnv: env.lookup,
	}
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
