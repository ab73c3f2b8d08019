package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func TestMain(m *testing.M) { services.Main(m) }

func TestEveryFaultIsPlanned(t *testing.T) {
	var all []fault.Fault
	for _, side := range []string{"relay", "postgres", "rabbitmq"} {
		for i := range 5 {
			all = append(all, fault.Fault{Name: fmt.Sprintf("%s-%d", side, i)})
		}
	}
	for _, overlap := range []float64{0, 0.5, 1} {
		p := newPlanner(&options{seed: 3, faults: all, hold: time.Second, overlap: overlap})
		seen := make(map[string]int)
		for planned := 0; planned < 10*len(all); {
			for _, f := range p.next() {
				planned++
				seen[f.fault.Name]++
			}
		}
		for _, f := range all {
			if seen[f.Name] != 10 {
				t.Errorf("overlap %g: %s is planned %d times of 10", overlap, f.Name, seen[f.Name])
			}
		}
	}
}

// soakRun runs the program.
func soakRun(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	services.SharedPostgres(t) // without it, the program cannot start servers either
	services.SharedRabbitMQ(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out publishtest.Buffer
	p := process{args: append([]string{"cdc-relay-soak"}, args...), stdout: &out, stderr: &out}
	code = p.run(t.Context())
	return code, strings.Join(out.Lines(), "\n")
}

// The poller repeats a batch that was cut off, without a mark, and loses nothing.
func TestAnotherProgramIsJudgedByTheSameHistory(t *testing.T) {
	poller, report := filepath.Join(t.TempDir(), "soak-poller"), filepath.Join(t.TempDir(), "report.json")
	if out, err := exec.Command("go", "build", "-o", poller, "../soak-poller").CombinedOutput(); err != nil {
		t.Fatalf("build the poller: %v\n%s", err, out)
	}
	code, out := soakRun(t,
		"--subject", "poller", "--relay", poller, "--relays", "1", "--rounds", "2", "--duration", "1m", "--hold", "1s",
		"--pause", "500ms", "--rate", "200", "--seed", "3", "--faults", "relay-kill-all,rabbitmq-cut",
		"--overlap", "0", "--json", report)
	if code != exitPassed {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	content, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var verdict history.Verdict
	if err := json.Unmarshal(content, &verdict); err != nil {
		t.Fatalf("%v:\n%s", err, content)
	}
	c := verdict.Counters
	if c.OK == 0 || c.OK != c.Acknowledged || c.Lost+c.Unexpected+c.Damaged+c.Waiting+c.OutOfOrder > 0 ||
		len(verdict.Faults) != 2 || verdict.Processor <= 0 {
		t.Errorf("%+v, %d faults, %s of processor time", c, len(verdict.Faults), verdict.Processor)
	}
	code, table := soakRun(t, "table", report, report) // two runs of one subject
	if code != exitPassed || !strings.Contains(table, "||poller|\n") || !strings.Contains(table, "|lost|0|\n") {
		t.Errorf("exit %d:\n%s", code, table)
	}
}
