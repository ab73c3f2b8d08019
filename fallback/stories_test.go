package fallback

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The files of testdata are walks of the model, to read: each line that begins with > is a step, and the lines below it
// are what the step does. With UPDATE_STORIES=1, the test writes these lines.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d stories, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := tell(t, string(want))
			if os.Getenv("UPDATE_STORIES") != "" {
				err = os.WriteFile(file, []byte(got), 0o600)
			}
			if err != nil || got != string(want) {
				t.Errorf("%v; the story is now:\n%s", err, got)
			}
		})
	}
}

// tell runs the steps of a story and returns it. In the end, all rows leave.
func tell(t *testing.T, story string) string {
	m := emptyModel()
	m.t = t
	m.boot()
	m.empty() // the relay has read the whole table
	var told strings.Builder
	m.say = func(format string, args ...any) { fmt.Fprintf(&told, "  "+format+"\n", args...) }
	for line := range strings.Lines(story) {
		if !strings.HasPrefix(line, "  ") {
			told.WriteString(line)
		}
		if words := strings.Fields(line); len(words) > 1 && words[0] == ">" {
			m.step(t, words[1], words[2:])
		}
	}
	m.say = func(string, ...any) {}
	m.quiesce()
	m.empty()
	return told.String()
}

// step does one step of a story. Some steps have ids of rows.
func (m *model) step(t *testing.T, name string, words []string) {
	each := func(outcome outbox.Outcome, reason outbox.Reason) {
		for _, word := range words {
			is := func(message *outbox.Message) bool { return strconv.FormatInt(message.ID, 10) == word }
			i := slices.IndexFunc(m.inFlight, is)
			if i < 0 {
				t.Fatalf("%s: row %s is not in flight", name, word)
			}
			m.resolve(i, outcome, reason, outcome == outbox.Unknown)
		}
	}
	switch name {
	case "insert": // a row for each key, - is none; a row with + is scheduled
		keys, scheduled := make([]string, len(words)), make([]bool, len(words))
		for i, word := range words {
			keys[i], scheduled[i] = strings.Trim(word, "-+"), strings.HasSuffix(word, "+")
		}
		m.insert(keys, scheduled)
		m.txs[len(m.txs)-1].visible = true
	case "stream":
		m.streamNext()
	case "confirm":
		each(outbox.Confirmed, "")
	case "reject":
		each(outbox.Rejected, outbox.ReasonUnroutable)
	case "refuse-for-good":
		each(outbox.Impossible, outbox.ReasonTooLarge)
	case "lose-confirm":
		each(outbox.Unknown, "")
	case "settle":
		m.settle()
	case "sweep":
		m.sweep(map[string]Sweep{"due": Due, "backlog": Backlog, "keys": Keys}[words[0]], func() {})
	case "end-claim": // it writes the answers
		for range 3 {
			m.stepClaim(0)
		}
	case "wait":
		d, err := time.ParseDuration(words[0])
		if err != nil {
			t.Fatal(err)
		}
		m.pass(d)
	case "outage":
		m.core.PublisherReady(false)
	case "recovery":
		m.core.PublisherReady(true)
	case "requeue":
		id, _ := strconv.ParseInt(words[0], 10, 64)
		m.requeue(id)
		m.txs[len(m.txs)-1].visible = true
	case "crash":
		m.crash([]bool{true})
	case "fail-over": // the last transactions are lost
		lost, _ := strconv.Atoi(words[0])
		m.failOver(lost)
	case "freeze": // another relay publishes the rows of the table and dies
		published := false
		m.freeze(true, func() bool { published = !published; return published })
	case "ask-for-slot":
		m.askForSlot()
	case "coalesce": // rows 2, 3 and 5 have the same coalesce key
		m.coalescing = true
	default:
		t.Fatalf("no step %s", name)
	}
}
