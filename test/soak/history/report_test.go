package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
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
