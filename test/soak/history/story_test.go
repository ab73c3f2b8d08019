package history

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
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

var rewrite = flag.Bool("rewrite", false, "write what came out into the stories, to be read before it is committed")

// The stories are files of testdata: what happened, a line of dashes, and what the checker makes of it.
//
//	10ms   tx 1: a, b key k 1, c scheduled 5s, d unroutable, e discarded
//	11ms   tx 1 committed
//	12ms   a arrives [marked] [redelivered] [damaged WORD]
//	13ms   fault 1 NAME [duplicates] [refuses] [unmarked]
//	14ms   fault 1 healed
//	15ms   a in outbox|dead_letter [attempts N] [REASON]
//	16ms   kept 1 2 3
func TestEachStoryHasItsVerdict(t *testing.T) {
	for file, stories := range allStories(t) {
		var written strings.Builder
		for _, story := range stories {
			got := story.tell(t)
			fmt.Fprintf(&written, "story %s\n%s----\n%s\n", story.title, story.events, got)
			t.Run(filepath.Base(file)+"/"+story.title, func(t *testing.T) {
				if got != story.want && !*rewrite {
					t.Errorf("the story\n%s\ncomes out as\n%s\nwant\n%s", story.events, got, story.want)
				}
			})
		}
		if *rewrite {
			if err := os.WriteFile(file, []byte(written.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type story struct{ title, events, want string }

func allStories(t testing.TB) map[string][]story {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	all := make(map[string][]story)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[file] = storiesOf(string(text))
	}
	return all
}

func storiesOf(text string) []story {
	var all []story
	for _, part := range strings.Split("\n"+text, "\nstory ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		events, want, _ := strings.Cut(rest, "----\n")
		all = append(all, story{title, events, strings.TrimRight(want, "\n") + "\n"})
	}
	return all
}

// tell returns the checker's result for the story.
func (s *story) tell(t *testing.T) string {
	t.Helper()
	names := make(map[outbox.UUID]string)
	v, err := Check(bytes.NewReader(s.lines(t, names)))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	text := v.Text
	for id, name := range names {
		text = strings.ReplaceAll(text, id.String(), name)
	}
	return text
}

func (s *story) lines(t testing.TB, names map[outbox.UUID]string) []byte {
	t.Helper()
	var lines []line
	for _, text := range strings.Split(strings.TrimSpace(s.events), "\n") {
		words := strings.Fields(text)
		when := duration(t, words[0])
		for _, l := range eventsOf(t, words[1:], names) {
			l.At = when
			lines = append(lines, l)
		}
	}
	return written(t, lines)
}

func written(t interface{ Fatal(...any) }, lines []line) []byte {
	var out bytes.Buffer
	for i := range lines {
		text, err := json.Marshal(&lines[i])
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(text, '\n'))
	}
	return out.Bytes()
}

func duration(t testing.TB, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSuffix(text, ":"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func idOf(name string, names map[outbox.UUID]string) outbox.UUID {
	sum := sha256.Sum256([]byte(name))
	id := outbox.UUID(sum[:16])
	names[id] = name
	return id
}

func eventsOf(t testing.TB, words []string, names map[outbox.UUID]string) []line {
	t.Helper()
	switch {
	case words[0] == "kept":
		var all []line
		for _, word := range words[1:] {
			id := int64(number(t, word))
			all = append(all, line{Kept: &id})
		}
		return all
	case words[0] == "tx" && strings.HasSuffix(words[1], ":"):
		ending := Transaction{ID: int64(number(t, words[1])), Writer: 1}
		for _, told := range strings.Split(strings.Join(words[2:], " "), ",") {
			ending.Messages = append(ending.Messages, messageOf(t, strings.Fields(told), names))
		}
		return []line{{Ending: &ending}}
	case words[0] == "tx":
		return []line{{Ended: &ended{ID: int64(number(t, words[1])), Outcome: Outcome(words[2])}}}
	case words[0] == "fault" && words[2] == "healed":
		id := number(t, words[1])
		return []line{{Healed: &id}}
	case words[0] == "fault":
		return []line{{Began: faultOf(t, words[1:])}}
	case words[1] == "arrives":
		d := Delivery{Message: idOf(words[0], names), Queue: "q"}
		d.Marked = slices.Contains(words, "marked")
		d.Redelivered = slices.Contains(words, "redelivered")
		if i := slices.Index(words, "damaged"); i > 0 {
			d.Content = words[i+1]
		}
		return []line{{Delivered: &d}}
	case words[1] == "in":
		r := Row{Message: idOf(words[0], names), DeadLetter: words[2] == "dead_letter"}
		if len(words) > 4 {
			r.Attempts = number(t, words[4])
		}
		if len(words) > 5 {
			r.Reason = words[5]
		}
		return []line{{Remaining: &r}}
	}
	t.Fatalf("the story has a line that cannot be read: %s", words)
	return nil
}

func messageOf(t testing.TB, words []string, names map[outbox.UUID]string) Message {
	t.Helper()
	m := Message{ID: idOf(words[0], names), Kind: Plain}
	for i, word := range words {
		switch word {
		case "key":
			m.Key, m.Seq = words[i+1], number(t, words[i+2])
		case "scheduled":
			m.Kind, m.NotBefore = Scheduled, duration(t, words[i+1])
		case "unroutable":
			m.Kind, m.Reason = Unroutable, "retries_exhausted"
		case "impossible":
			m.Kind, m.Reason = Impossible, "invalid_headers"
		case "large", "binary":
			m.Kind = Kind(word)
		case "discarded":
			m.Discarded = true
		}
	}
	return m
}

func faultOf(t testing.TB, words []string) *Fault {
	t.Helper()
	f := &Fault{ID: number(t, words[0]), Name: words[1]}
	for _, word := range words {
		switch word {
		case "duplicates":
			f.Duplicates = true
		case "refuses":
			f.Refuses = true
		case "unmarked":
			f.Unmarked = true
		}
	}
	return f
}
