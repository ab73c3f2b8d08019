package handler

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// handlerFile makes the test binary run as a handler that appends each message to the named file.
const handlerFile = "CDC_RELAY_TEST_HANDLER"

// beHandler answers as "do" in the payload says; by default, confirmed.
func beHandler(name string) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	batch := ""
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break // the relay has closed it
		}
		var m struct {
			MessageID string          `json:"message_id"`
			Payload   json.RawMessage `json:"payload"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		if _, err := file.Write(line); err != nil {
			panic(err)
		}
		var order struct {
			Do, Answer string
		}
		_ = json.Unmarshal(m.Payload, &order) // other payloads give no order
		switch order.Do {
		case "":
			fmt.Printf("{\"message_id\":%q,\"outcome\":\"confirmed\"}\n", m.MessageID)
		case "answer":
			fmt.Println(strings.ReplaceAll(order.Answer, "ID", m.MessageID))
		case "batch": // answered when no message waits
			batch += fmt.Sprintf("{\"message_id\":%q,\"outcome\":\"confirmed\"}\n", m.MessageID)
		case "last": // its line has no end
			fmt.Printf("{\"message_id\":%q,\"outcome\":\"confirmed\"}", m.MessageID)
			os.Exit(0)
		case "long":
			fmt.Printf("%s\n{\"message_id\":%q,\"outcome\":\"confirmed\"}\n", strings.Repeat("x", 5*longestAnswer), m.MessageID)
		case "crash":
			os.Exit(3)
		case "sleep":
			time.Sleep(time.Hour)
		case "deaf":
			_ = os.Stdin.Close()
			fmt.Printf("{\"message_id\":%q,\"outcome\":\"confirmed\"}\n", m.MessageID)
			time.Sleep(time.Hour)
		}
		if in.Buffered() == 0 {
			fmt.Print(batch)
			batch = ""
		}
	}
	os.Exit(0)
}

func newHandler(t *testing.T, file string, timeout time.Duration) *Publisher {
	t.Helper()
	self, err := os.Executable()
	services.Must(t, err)
	p, err := New(Config{
		Command: []string{self}, Env: append(os.Environ(), handlerFile+"="+file), Stderr: t.Output(), AnswerTimeout: timeout,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	services.Must(t, err)
	return p
}

// handling returns a publisher whose handler runs.
func handling(t *testing.T) *publishtest.Running {
	t.Helper()
	r := publishtest.Start(t, newHandler(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	r.AwaitPhase(t, publish.Ready)
	return r
}

func TestAnswersBecomeResults(t *testing.T) {
	var k publishtest.Maker
	type outcome struct {
		outcome outbox.Outcome
		reason  outbox.Reason
		retryIn time.Duration
		detail  string
	}
	var messages []*outbox.Message
	var wanted []outcome
	for _, test := range []struct {
		answer string
		want   outcome
	}{
		{`{"message_id":"ID","outcome":"confirmed","more":1}`, outcome{outbox.Confirmed, "", 0, ""}},
		{`{"message_id":"ID","outcome":"rejected","retry_in":"90s","detail":"HTTP 503:\n busy"}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 90 * time.Second, "HTTP 503: busy"}},
		{`{"message_id":"ID","outcome":"rejected"}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, ""}},
		{`{"message_id":"ID","outcome":"impossible","detail":"no address"}`, outcome{outbox.Impossible, outbox.ReasonHandlerImpossible, 0, "no address"}},
		{`{"message_id":"ID","outcome":"unknown","detail":"timeout"}`, outcome{outbox.Unknown, "", 0, "timeout"}},
		{`{"message_id":"ID","outcome":"not_sent","detail":"refused"}`, outcome{outbox.NotSent, "", 0, "refused"}},
		{`{"message_id":"ID","outcome":"unknown","detail":""}`, outcome{outbox.Unknown, "", 0, ""}},
		{`{"message_id":"ID","outcome":"rejected","detail":"a\u001b[2Jb\u0000c\u202ed\u009be"}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, "a?[2Jb?c?d?e"}},
		{`{"message_id":"ID","outcome":"confirmed"}` + "\n" + `{"message_id":"ID","outcome":"unknown"}`, outcome{outbox.Confirmed, "", 0, ""}},
		{`{"message_id":"ID","outcome":"card 4111111111111111"}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, "wrong answer: outcome of 21 bytes: want confirmed, rejected, impossible, unknown or not_sent"}},
		{`{"message_id":"ID","outcome":""}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, `wrong answer: outcome "": want confirmed, rejected, impossible, unknown or not_sent`}},
		{"hello\n\n" + `{"message_id":"00000000-0000-4000-8000-000000000000","outcome":"confirmed"}` + "\n" + `{"message_id":"ID","outcome":"confirmed"}`, outcome{outbox.Confirmed, "", 0, ""}},
		{`{"message_id":"ID","outcome":"done"}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, `wrong answer: outcome "done": want confirmed, rejected, impossible, unknown or not_sent`}},
		{
			`{"message_id":"ID","outcome":"rejected","retry_in":"30"}`,
			outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, `wrong answer: retry_in "30": want a duration with its unit, such as 30s, and the outcome rejected`},
		},
		{`{"message_id":"ID","outcome":"rejected","retry_in":30}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, "wrong answer: retry_in: want a string, not a JSON number"}},
		{`{"message_id":"ID","outcome":"confirmed","detail":{}}`, outcome{outbox.Rejected, outbox.ReasonHandlerRejected, 0, "wrong answer: detail: want a string, not a JSON object"}},
	} {
		order, err := json.Marshal(map[string]string{"do": "answer", "answer": test.answer})
		services.Must(t, err)
		messages = append(messages, k.Make("x", "k", string(order)))
		wanted = append(wanted, test.want)
	}
	r := handling(t)
	began := time.Now()
	for i, result := range r.Answers(t, messages...) {
		if got := (outcome{result.Outcome, result.Reason, result.RetryIn, result.Detail}); got != wanted[i] {
			t.Errorf("message %d: got %+v, want %+v", i, got, wanted[i])
		}
		if wrong := strings.HasPrefix(result.Detail, "wrong answer"); wrong != result.MaybeSent {
			t.Errorf("message %d may have arrived: %v", i, result.MaybeSent)
		}
	}
	if took := time.Since(began); took < unknownPause {
		t.Errorf("an unknown outcome came after %v: the relay would retry without a pause", took)
	}
}

// A line that is too long is ignored, and the last line needs no end.
func TestAcceptsALastLineWithoutAnEnd(t *testing.T) {
	var k publishtest.Maker
	r := handling(t)
	for _, do := range []string{"long", "last"} {
		r.AwaitPhase(t, publish.Ready)
		m := k.Make("x", "k", `{"do":"`+do+`"}`)
		publishtest.AllAre(t, r.Answers(t, m), outbox.Confirmed)
	}
}

// A handler that writes without end fills no memory.
func TestReadsOutputOnlyAsFastAsItTakesAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taker := make(chan [][]byte)
		r := &lineReader{lines: taker}
		chunk := bytes.Repeat([]byte("no answer\n"), 3000) // as os/exec reads
		const chunks = 100
		written := 0
		go func() {
			for ; written < chunks; written++ {
				_, _ = r.Write(chunk)
			}
		}()
		for taken := range chunks {
			synctest.Wait()
			if written != taken {
				t.Fatalf("%d chunks are read, %d are taken", written, taken)
			}
			<-taker
		}
	})
}

// Its unanswered messages are Unknown.
func TestReplacesAHandlerThatEnds(t *testing.T) {
	var k publishtest.Maker
	r := handling(t)
	for range 2 {
		r.AwaitPhase(t, publish.Ready)
		mark := r.Mark()
		before, silent, crash := k.Make("x", "k", `{}`), k.Make("x", "k", `{"do":"nothing"}`), k.Make("x", "k", `{"do":"crash"}`)
		results := r.Answers(t, before, silent, crash)
		publishtest.AllAre(t, results[:1], outbox.Confirmed)
		publishtest.AllAre(t, results[1:], outbox.Unknown)
		r.AwaitSince(t, mark, publish.Connecting)
	}
	r.AwaitPhase(t, publish.Ready)
	after := k.Make("x", "k", `{}`)
	publishtest.AllAre(t, r.Answers(t, after), outbox.Confirmed)
}

// An answer to a later message does not save the handler.
func TestKillsAHandlerThatSkipsAMessage(t *testing.T) {
	for _, do := range []string{"nothing", "sleep"} {
		t.Run(do, func(t *testing.T) {
			var k publishtest.Maker
			p := newHandler(t, filepath.Join(t.TempDir(), "arrived"), 100*time.Millisecond)
			p.startTime = 0
			r := publishtest.Start(t, p)
			r.AwaitPhase(t, publish.Ready)
			mark := r.Mark()
			silent := k.Make("x", "k", `{"do":"`+do+`"}`)
			publishtest.AllAre(t, r.Answers(t, silent), outbox.Unknown)
			r.AwaitSince(t, mark, publish.Connecting)
			r.AwaitPhase(t, publish.Ready)
			r.Mu.Lock()
			defer r.Mu.Unlock()
			for _, s := range r.States[mark:] {
				if s.Phase == publish.Connecting && !strings.Contains(s.Detail, "gave no answer for message "+silent.MessageID.String()+" within 100ms") {
					t.Errorf("the state says %q", s.Detail)
				}
			}
		})
	}
}

// It would never get another message.
func TestKillsAHandlerThatClosesItsInput(t *testing.T) {
	var k publishtest.Maker
	r := handling(t)
	mark := r.Mark()
	deaf, after := k.Make("x", "k", `{"do":"deaf"}`), k.Make("x", "k", `{}`)
	publishtest.AllAre(t, r.Answers(t, deaf), outbox.Confirmed)
	publishtest.AllAre(t, r.Answers(t, after), outbox.NotSent)
	r.AwaitSince(t, mark, publish.Connecting)
	r.Mu.Lock()
	if got := r.States[mark].Detail; got != "the handler has closed its standard input" {
		t.Errorf("the state says %q", got)
	}
	r.Mu.Unlock()
	r.AwaitPhase(t, publish.Ready)
	again := *after
	publishtest.AllAre(t, r.Answers(t, &again), outbox.Confirmed)
}

func TestEndsIfTheFirstHandlerCannotStart(t *testing.T) {
	for name, script := range map[string]string{"no interpreter": "echo\n", "a missing interpreter": "#!/no/such/interpreter\n"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "handler")
			services.Must(t, os.WriteFile(file, []byte(script), 0o700))
			p, err := New(Config{Command: []string{file}})
			services.Must(t, err)
			r := publishtest.Start(t, p)
			await.Receive(t, "Run returns", r.Done)
			if r.Err == nil || !strings.Contains(problem.Hint(r.Err), "#!/bin/sh") {
				t.Errorf("Run returned %v", r.Err)
			}
		})
	}
}

// A full pipe blocks no caller, and Run returns.
func TestHandlerThatDoesNotReadBlocksNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "arrived")
	r := publishtest.Start(t, newHandler(t, file, time.Hour))
	r.AwaitPhase(t, publish.Ready)
	var k publishtest.Maker
	messages := append([]*outbox.Message{k.Make("x", "k", `{"do":"sleep"}`)}, k.Many(40, "x", "k")...)
	for _, m := range messages[1:] {
		m.Payload = []byte(`"` + strings.Repeat("x", 10_000) + `"`)
	}
	r.PublishAll(messages...)
	await.Until(t, "the handler has the first message", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	r.Stop(t)
	results := r.AwaitResults(t, messages...)
	publishtest.AllAre(t, results[:1], outbox.Unknown)
	publishtest.AllAre(t, results[len(results)-1:], outbox.NotSent)
}

func TestMessagesWithTheSameMessageIDGetTheirOwnAnswers(t *testing.T) {
	var k publishtest.Maker
	first, second := k.Make("x", "k", `{}`), k.Make("x", "k", `{"do":"answer","answer":"{\"message_id\":\"ID\",\"outcome\":\"rejected\"}"}`)
	second.MessageID = first.MessageID
	r := handling(t)
	results := r.Answers(t, first, second)
	publishtest.AllAre(t, results[:1], outbox.Confirmed)
	publishtest.AllAre(t, results[1:], outbox.Rejected)
}

// The handler may have read what was written, and cannot have read the rest.
func TestAFailedWriteLeavesOnlyTheRestUnsent(t *testing.T) {
	var k publishtest.Maker
	all, results := k.Many(3, "", "k"), publishtest.NewRecorder()
	p := newHandler(t, "", time.Minute)
	p.inbox.Sink = results
	h := &handler{p: p, asked: slices.Clone(all), writing: &batch{messages: all, ends: []int{10, 20, 30}}}
	h.wrote(written{15, io.ErrClosedPipe})
	if rest := results.AwaitResults(t, all[2])[0]; rest.Outcome != outbox.NotSent || !slices.Equal(h.asked, all[:2]) {
		t.Errorf("%+v, %d messages may have been read", rest, len(h.asked))
	}
}

// If it ends the handler, no other message is suspected.
func TestNoMessageIsBesideOneThatMustBeAlone(t *testing.T) {
	var k publishtest.Maker
	closed, stdin := io.Pipe()
	_ = closed.Close()
	h := &handler{p: newHandler(t, "", time.Minute), stdin: stdin, written: make(chan written, 1)}
	h.asked, h.alone, h.unsent = k.Many(1, "", "k"), true, k.Many(1, "", "k")
	if h.write(); h.writing != nil {
		t.Error("another message is written before its answer")
	}
	h.asked = nil
	if h.write(); h.writing == nil {
		t.Error("nothing is written after its answer")
	}
	<-h.written
}

func TestNeedsAnExistingProgram(t *testing.T) {
	for _, command := range [][]string{nil, {"/nowhere/handler"}, {"no-such-program-of-cdc-relay"}} {
		if _, err := New(Config{Command: command}); err == nil {
			t.Errorf("%q is taken", command)
		}
	}
}

func TestMain(m *testing.M) {
	if file := os.Getenv(handlerFile); file != "" {
		beHandler(file)
	}
	services.Main(m)
}

func TestThePublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		file := filepath.Join(t.TempDir(), "arrived")
		arrived := func() []publishtest.Seen {
			text, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
			return publishtest.LinesSeen(t, lines)
		}
		return publishtest.Subject{Publisher: newHandler(t, file, 0), Exchange: "x", Key: "k", Arrived: arrived}
	})
}

// Such a message makes every handler end or hang. All others are confirmed, whether the handler answers them one at a
// time or together.
func TestRejectsAMessageThatBreaksEveryHandler(t *testing.T) {
	for _, do := range []string{"crash", "sleep"} {
		for _, others := range []string{`{}`, `{"do":"batch"}`} {
			t.Run(do+" among "+others, func(t *testing.T) {
				timeout := time.Hour
				if do == "sleep" {
					timeout = await.Scaled(2 * time.Second)
					services.Thorough(t, "a crash has the same consequences, and is faster")
				}
				p := newHandler(t, filepath.Join(t.TempDir(), "arrived"), timeout)
				p.startTime = 0 // for less waiting
				r := publishtest.Start(t, p)
				var k publishtest.Maker
				var messages []*outbox.Message
				for range 20 {
					messages = append(messages, k.Make("x", "k", others))
				}
				poison := k.Make("x", "k", `{"do":"`+do+`"}`)
				messages = append(append(messages[:5:5], poison), messages[5:]...)
				for range 2 { // the second attempt is rejected too
					settled, _ := r.Settle(t, messages, nil, nil)
					for id, result := range settled {
						if id != poison.ID && result.Outcome != outbox.Confirmed {
							t.Errorf("message %d: %v (%s: %s)", id, result.Outcome, result.Reason, result.Detail)
						}
					}
					got := settled[poison.ID]
					if got.Outcome != outbox.Rejected || got.Reason != outbox.ReasonHandlerRejected || !got.MayHaveArrived() || !strings.Contains(got.Detail, " handlers ended when this message was sent alone, the last one: the handler ") {
						t.Errorf("the poison: %+v", got)
					}
					messages = []*outbox.Message{k.Make("x", "k", `{}`), poison}
					again := *poison
					messages[1] = &again
				}
			})
		}
	}
}

// The first handler that ends at it answered all others, as in a drain of a table where it is the last row.
func TestRejectsAMessageAfterWhichNoOtherComes(t *testing.T) {
	r := handling(t)
	var k publishtest.Maker
	good, poison := k.Make("x", "k", `{}`), k.Make("x", "k", `{"do":"crash"}`)
	if settled, _ := r.Settle(t, []*outbox.Message{good, poison}, nil, nil); settled[good.ID].Outcome != outbox.Confirmed || settled[poison.ID].Outcome != outbox.Rejected {
		t.Errorf("got %+v", settled)
	}
}

func TestHandlersMayTakeLongerToStartThanToAnswer(t *testing.T) {
	p := newHandler(t, filepath.Join(t.TempDir(), "arrived"), time.Nanosecond)
	p.startTime = time.Hour
	r := publishtest.Start(t, p)
	r.AwaitPhase(t, publish.Ready)
	var k publishtest.Maker
	m := k.Make("x", "k", `{}`)
	publishtest.AllAre(t, r.Answers(t, m), outbox.Confirmed)
}

// The log names an invalid line, but does not quote it: it may be a message.
func TestLogsNothingThatTheHandlerPrints(t *testing.T) {
	for _, secret := range []string{
		"secret",
		`"secret"`,
		`["secret"]`,
		"42424242",
		`{"secret": secret}`,
		`{"message_id": "secret"}`,
		`{"message_id": 42424242, "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a5z", "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", "outcome": "secret"}`,
		`{"message_id": "5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52", "outcome": "rejected", "retry_in": "secret"}`,
		`{"outcome": {"secret": 42424242}}`,
		"\x00\x1b[2Jsecret",
		strings.Repeat("secret", longestAnswer),
	} {
		var log bytes.Buffer
		h := &handler{p: &Publisher{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}}
		h.take([][]byte{[]byte(secret), []byte(secret)})
		text := log.String()
		if strings.Count(text, "handler_answer_invalid") != 1 || !strings.Contains(text, "bytes=") {
			t.Errorf("%.80q: logged %q", secret, text)
		}
		for _, part := range []string{"secret", "42424242", "\\x1b", "invalid character"} {
			if strings.Contains(text, part) {
				t.Errorf("%.80q: the log quotes it: %s", secret, text)
			}
		}
	}
}

func TestTheHandlerDoesNotInheritCredentials(t *testing.T) {
	removed := []string{
		"CDC_RELAY_DATABASE_URL", "CDC_RELAY_AMQP_URL_FILE", "CDC_RELAY_", "cdc_relay_amqp_url",
		"PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "PGSSLKEY", "PGSSLPASSWORD", "PGUSER", "PGHOST",
		"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_CLIENT_KEY",
		"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT",
		"DD_API_KEY", "DD_APP_KEY", "DD_DOGSTATSD_URL", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS",
	}
	kept := []string{
		"PATH", "HOME", "LANG", "TOKEN", "HTTP_PROXY", "OTEL_SERVICE_NAME", "DD_AGENT_HOST", "MY_CDC_RELAY_TOKEN", "PGP_KEY",
		"TARGET_PGPASSWORD", "LISTENER", "CDC_RELAYED", "EMPTY",
	}
	var environ []string
	for _, name := range append(slices.Clone(removed), kept...) {
		environ = append(environ, name+"=CDC_RELAY_X=1")
	}
	var got []string
	for _, pair := range Environment(environ) {
		name, _, _ := strings.Cut(pair, "=")
		got = append(got, name)
	}
	if !slices.Equal(got, kept) {
		t.Errorf("got %v, want %v", got, kept)
	}
	t.Setenv("PGPASSWORD", "secret")
	p, err := New(Config{Command: []string{"true"}})
	if err != nil || slices.Contains(p.cfg.Env, "PGPASSWORD=secret") || len(p.cfg.Env) == 0 {
		t.Errorf("without an environment: %v, %v", p, err)
	}
}
