package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pollerProgram builds the poller.
func pollerProgram(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "soak-poller")
	if out, err := exec.Command("go", "build", "-o", file, "../soak-poller").CombinedOutput(); err != nil {
		t.Fatalf("build the poller: %v\n%s", err, out)
	}
	return file
}

// The poller repeats a batch that was cut off, without a mark, and loses nothing.
func TestAnotherProgramIsJudgedByTheSameHistory(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.json")
	code, out := soakRun(t,
		"--subject", "poller", "--relay", pollerProgram(t), "--relays", "1", "--rounds", "2", "--duration", "1m", "--hold", "1s",
		"--pause", "500ms", "--rate", "200", "--seed", "3", "--writers", "2", "--faults", "relay-kill-all,rabbitmq-cut", "--overlap", "0",
		"--json", report)
	if code != exitPassed {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	verdict := readReport(t, report)
	c := verdict.Counters
	if c.OK == 0 || c.OK != c.Acknowledged || c.Lost+c.Unexpected+c.Damaged+c.Waiting+c.OutOfOrder > 0 || len(verdict.Faults) != 2 ||
		verdict.Processor <= 0 {
		t.Errorf("%+v, %d faults, %s of processor time", c, len(verdict.Faults), verdict.Processor)
	}
	code, table, errs := call(t, "table", report, report) // two runs of one subject
	if strings.Count(table, "|-|\n") != 3 {               // two of five groups have faults
		t.Errorf("a group with faults has no recovery:\n%s", table)
	}
	for _, want := range []string{
		"||poller|\n", "|faults|4|\n", "|lost|0|\n", "|messages committed|" + grouped(2*(c.Acknowledged+c.Recovered)) + "|\n",
		"|Postgres killed, stopped, frozen|-|\n",
	} {
		if code != exitPassed || !strings.Contains(table, want) {
			t.Errorf("exit %d, %s, want %q in\n%s", code, errs, want, table)
		}
	}
}
