package publish

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
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

// newExec returns a publisher with a handler of this file.
func newExec(t *testing.T, file string, timeout time.Duration) *Exec {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewExec(ExecConfig{
		Command: []string{self}, Env: append(os.Environ(), handlerFile+"="+file), Stderr: t.Output(), AnswerTimeout: timeout,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExecAnswersBecomeResults(t *testing.T) {
	var k maker
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
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, k.make("x", "k", string(order)))
		wanted = append(wanted, test.want)
	}
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	r.awaitPhase(t, Ready)
	began := time.Now()
	r.publish(messages...)
	for i, result := range r.awaitResults(t, messages...) {
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
func TestExecAcceptsALastLineWithoutAnEnd(t *testing.T) {
	var k maker
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	for _, do := range []string{"long", "last"} {
		r.awaitPhase(t, Ready)
		m := k.make("x", "k", `{"do":"`+do+`"}`)
		r.publish(m)
		allAre(t, r.awaitResults(t, m), outbox.Confirmed)
	}
}

// A handler that writes without end fills no memory.
func TestExecReadsOutputOnlyAsFastAsItTakesAnswers(t *testing.T) {
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
func TestExecReplacesAHandlerThatEnds(t *testing.T) {
	var k maker
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	for range 2 {
		r.awaitPhase(t, Ready)
		mark := r.mark()
		before, silent, crash := k.make("x", "k", `{}`), k.make("x", "k", `{"do":"nothing"}`), k.make("x", "k", `{"do":"crash"}`)
		r.publish(before, silent, crash)
		results := r.awaitResults(t, before, silent, crash)
		allAre(t, results[:1], outbox.Confirmed)
		allAre(t, results[1:], outbox.Unknown)
		r.awaitSince(t, mark, Connecting)
	}
	r.awaitPhase(t, Ready)
	after := k.make("x", "k", `{}`)
	r.publish(after)
	allAre(t, r.awaitResults(t, after), outbox.Confirmed)
}

// An answer to a later message does not save the handler.
func TestExecKillsAHandlerThatSkipsAMessage(t *testing.T) {
	for _, do := range []string{"nothing", "sleep"} {
		t.Run(do, func(t *testing.T) {
			var k maker
			p := newExec(t, filepath.Join(t.TempDir(), "arrived"), 100*time.Millisecond)
			p.startTime = 0
			r := start(t, p)
			r.awaitPhase(t, Ready)
			mark := r.mark()
			silent := k.make("x", "k", `{"do":"`+do+`"}`)
			r.publish(silent)
			allAre(t, r.awaitResults(t, silent), outbox.Unknown)
			r.awaitSince(t, mark, Connecting)
			r.awaitPhase(t, Ready)
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, s := range r.states[mark:] {
				if s.Phase == Connecting && !strings.Contains(s.Detail, "gave no answer for message "+silent.MessageID.String()+" within 100ms") {
					t.Errorf("the state says %q", s.Detail)
				}
			}
		})
	}
}

// It would never get another message.
func TestExecKillsAHandlerThatClosesItsInput(t *testing.T) {
	var k maker
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	r.awaitPhase(t, Ready)
	mark := r.mark()
	deaf, after := k.make("x", "k", `{"do":"deaf"}`), k.make("x", "k", `{}`)
	r.publish(deaf)
	allAre(t, r.awaitResults(t, deaf), outbox.Confirmed)
	r.publish(after)
	allAre(t, r.awaitResults(t, after), outbox.NotSent)
	r.awaitSince(t, mark, Connecting)
	r.mu.Lock()
	if got := r.states[mark].Detail; got != "the handler has closed its standard input" {
		t.Errorf("the state says %q", got)
	}
	r.mu.Unlock()
	r.awaitPhase(t, Ready)
	again := *after
	r.publish(&again)
	allAre(t, r.awaitResults(t, &again), outbox.Confirmed)
}

func TestExecEndsIfTheFirstHandlerCannotStart(t *testing.T) {
	for name, script := range map[string]string{"no interpreter": "echo\n", "a missing interpreter": "#!/no/such/interpreter\n"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "handler")
			if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			p, err := NewExec(ExecConfig{Command: []string{file}})
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, p)
			await.Receive(t, "Run returns", r.done)
			if r.err == nil || !strings.Contains(problem.Hint(r.err), "#!/bin/sh") {
				t.Errorf("Run returned %v", r.err)
			}
		})
	}
}

// A full pipe blocks no caller, and Run returns.
func TestExecHandlerThatDoesNotReadBlocksNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "arrived")
	r := start(t, newExec(t, file, time.Hour))
	r.awaitPhase(t, Ready)
	var k maker
	messages := append([]*outbox.Message{k.make("x", "k", `{"do":"sleep"}`)}, k.many(40, "x", "k")...)
	for _, m := range messages[1:] {
		m.Payload = []byte(`"` + strings.Repeat("x", 10_000) + `"`)
	}
	r.publish(messages...)
	await.Until(t, "the handler has the first message", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	r.stop(t)
	results := r.awaitResults(t, messages...)
	allAre(t, results[:1], outbox.Unknown)
	allAre(t, results[len(results)-1:], outbox.NotSent)
}

func TestExecMessagesWithTheSameMessageIDGetTheirOwnAnswers(t *testing.T) {
	var k maker
	first, second := k.make("x", "k", `{}`), k.make("x", "k", `{"do":"answer","answer":"{\"message_id\":\"ID\",\"outcome\":\"rejected\"}"}`)
	second.MessageID = first.MessageID
	r := start(t, newExec(t, filepath.Join(t.TempDir(), "arrived"), time.Hour))
	r.awaitPhase(t, Ready)
	r.publish(first, second)
	results := r.awaitResults(t, first, second)
	allAre(t, results[:1], outbox.Confirmed)
	allAre(t, results[1:], outbox.Rejected)
}

func TestExecNeedsAnExistingProgram(t *testing.T) {
	for _, command := range [][]string{nil, {"/nowhere/handler"}, {"no-such-program-of-cdc-relay"}} {
		if _, err := NewExec(ExecConfig{Command: command}); err == nil {
			t.Errorf("%q is taken", command)
		}
	}
}
