package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// testdata has the reports of one history, for people and for programs.
func TestReportsMatchTheirGoldenFiles(t *testing.T) {
	v := reported(t)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"testdata/report/verdict.txt":  func(b *bytes.Buffer) error { return v.WriteText(b) },
		"testdata/report/verdict.json": func(b *bytes.Buffer) error { return v.WriteJSON(b) },
	} {
		var got bytes.Buffer
		if err := write(&got); err != nil {
			t.Fatal(err)
		}
		if *rewrite {
			if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s differs; got\n%s", name, &got)
		}
	}
}

func reported(t *testing.T) *Verdict {
	t.Helper()
	var events strings.Builder
	events.WriteString(`1s    tx 1: a key k 1, b key k 2, c, d discarded
1.1s  tx 1 committed
1.2s  b arrives
1.3s  a arrives
1.4s  a arrives marked
2s    fault 1 relay-kill duplicates 2000
3s    tx 2: e
3.1s  tx 2 unknown
4s    fault 1 healed
4.1s  a arrives marked
4.2s  tx 3: f, g unroutable
4.3s  tx 3 committed
4.5s  f arrives
5s    fault 2 broker-stop
6s    fault 2 healed
7s    fault 3 failover loses
8s    e arrives
9s    g in dead_letter attempts 6 retries_exhausted
9s    kept 1 3
9s    end
`)
	s := story{events: events.String()}
	lines := bytes.Split(s.lines(t, make(map[outbox.UUID]string)), []byte("\n"))
	run, err := json.Marshal(line{At: new(time.Duration), Run: &Run{
		Seed: 7, Command: "cdc-relay-soak --seed 7 --for 9s", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Versions: map[string]string{"postgres": "15.18", "rabbitmq": "3.10.8", "relay": "v1.0.0"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	lines[0] = run
	v, err := Check(bytes.NewReader(bytes.Join(lines, []byte("\n"))))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHeadlineOfEachVerdict(t *testing.T) {
	for want, v := range map[string]*Verdict{
		"PASS: 3 messages acknowledged, none lost, none unexpected, all in order; duplicates 1, no more than the faults allow": {
			Result: Pass, Counters: Counters{Acknowledged: 3, Duplicated: 1},
		},
		"INCOMPLETE: no violation so far, but the run was killed": {Result: Incomplete, Incomplete: "the run was killed"},
		"FAIL: the relay broke its promises (lost 1, two rows 2); the history contradicts itself, so the run itself is wrong (contradiction 3)": {
			Result: Fail, Violations: []Violation{
				{Code: Lost, Party: Relay, Count: 1}, {Code: TwoRows, Party: Relay, Count: 2}, {Code: Contradiction, Party: History, Count: 3},
			},
		},
		"FAIL: the database broke its promises (lost commit 1); beyond that, it was killed": {
			Result: Fail, Incomplete: "it was killed", Violations: []Violation{{Code: LostCommit, Party: Database, Count: 1}},
		},
	} {
		if got := v.Headline(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestOnlyTheFirstViolationsAreListed(t *testing.T) {
	s := newState()
	for i := range 100 {
		s.find(Lost, time.Duration(100-i), "message %d", i)
	}
	v := Verdict{Result: Fail, Violations: s.found()}
	if x := v.Violations[0]; x.Count != 100 || len(x.First) != 20 || x.First[0].At != 81 {
		t.Errorf("%+v", x)
	}
	var out bytes.Buffer
	if err := v.WriteText(&out); err != nil || !strings.Contains(out.String(), "  and 80 more\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestMillisecondsAreRoundedAndParsed(t *testing.T) {
	for d, want := range map[time.Duration][2]string{
		0:                                {"0", "0s"},
		1234567 * time.Nanosecond:        {"1.235", "1.23ms"},
		2*time.Second + 3456*1e3:         {"2003.456", "2.003s"},
		-time.Millisecond:                {"-1", "-1ms"},
		3*time.Hour + 4*time.Millisecond: {"10800004", "3h0m0s"},
	} {
		text, err := json.Marshal(Milliseconds(d))
		if err != nil || string(text) != want[0] || Milliseconds(d).String() != want[1] {
			t.Errorf("%s: %s and %s, want %s; %v", d, text, Milliseconds(d), want, err)
		}
		var back Milliseconds
		if err := json.Unmarshal(text, &back); err != nil || time.Duration(back) != d.Round(time.Microsecond) {
			t.Errorf("%s came back as %s, %v", d, time.Duration(back), err)
		}
	}
}

func TestCheckReturnsReadErrors(t *testing.T) {
	if v, err := Check(iotest.ErrReader(errFull)); !errors.Is(err, errFull) {
		t.Errorf("Check returned %v, %v", v, err)
	}
	for _, text := range []string{"", `{"at":0,"ru`, "\n"} {
		if v, err := Check(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %+v", text, v)
		}
	}
	if err := reported(t).WriteText(&fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("WriteText returned %v", err)
	}
	if err := reported(t).WriteJSON(&fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("WriteJSON returned %v", err)
	}
}

// A line can be longer than any buffer: a transaction of a million rows.
func TestCheckReadsLongLines(t *testing.T) {
	s := story{events: "1s tx 1: a\n2s tx 1 committed\n3s a arrives damaged " + strings.Repeat("x", 3<<20) + "\n4s kept 1\n4s end"}
	v, err := Check(bytes.NewReader(s.lines(t, make(map[outbox.UUID]string))))
	if err != nil || v.Counters.Damaged != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// Check judges or rejects any file.
func FuzzCheck(f *testing.F) {
	for _, stories := range allStories(f) {
		for _, s := range stories {
			f.Add(s.lines(f, make(map[outbox.UUID]string)))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, head := range []string{"", `{"at":0,"run":{"recover_within_ns":1}}` + "\n"} {
			v, err := Check(strings.NewReader(head + string(text)))
			if err != nil {
				continue
			}
			var out bytes.Buffer
			if err := v.WriteText(&out); err != nil {
				t.Error(err)
			}
			if err := v.WriteJSON(&out); err != nil {
				t.Error(err)
			}
		}
	})
}

// The last number is the memory that Check documents.
func BenchmarkCheck(b *testing.B) {
	const messages = 200_000
	var file bytes.Buffer
	r := NewRecorder(&file, Run{})
	for n := range messages {
		id := int64(n + 1)
		m := Message{ID: outbox.NewMessageID(), Kind: Plain, Key: fmt.Sprint("key ", n%1000), Seq: n/1000 + 1}
		r.Ending(Transaction{ID: id, Messages: []Message{m}})
		r.Ended(id, Committed)
		r.Delivered(Delivery{Message: m.ID, Queue: "soak.1"})
		r.Kept(id)
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(file.Len()))
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := newState()
		for text := range bytes.Lines(file.Bytes()) {
			if err := s.read(bytes.TrimSpace(text)); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if v := s.verdict(); v.Counters.OK != messages {
			b.Fatalf("%s", rendered(v))
		}
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/messages, "B/message")
}
