package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/bench"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Makes the test program act as a process that the benchmark starts, if it has that process's name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "limit" {
		main()
		return
	}
	services.Main(m)
}

func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"cdc-relay-bench"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// It has its own Postgres, because the creation of a slot waits for the transactions of all tests on a shared server.
// That Postgres does not wait for the disk, which would make thousands of commits slow.
func TestShortCasesRun(t *testing.T) {
	postgres := services.PrivatePostgres(t, "fsync=off")
	t.Setenv(services.EnvDatabase, postgres.URL(""))
	t.Setenv(services.EnvAMQP, services.SharedRabbitMQ(t).URL(""))
	relay := filepath.Join(t.TempDir(), "cdc-relay")
	if out, err := exec.Command("go", "build", "-o", relay, "../../../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("build the relay: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "results.json")
	const cases = "publish,drain,publish-written,stream-keyed,relay-500"
	code, stdout, stderr := execute(t, "--relay", relay, "--only", cases, "--rounds", "1", "--messages", "200",
		"--steady", "1s", "--json", file)
	if code != exitDone {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(content, &report); err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(cases, ",") + 1; len(report.Results) != want {
		t.Errorf("%d results, want %d", len(report.Results), want)
	}
	for _, result := range report.Results {
		if result.Rate <= 0 || result.Messages <= 0 || result.Duplicates > 0 {
			t.Errorf("%+v", result)
		}
		if paced := result.Case == "relay-500"; paced != (result.Latency != nil) {
			t.Errorf("latencies of %s: %+v", result.Case, result.Latency)
		}
	}
}
