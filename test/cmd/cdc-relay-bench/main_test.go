package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/bench"
)

// Makes the test program act as a process that the benchmark starts, if it has that process's name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "limit" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestShortCasesRun(t *testing.T) {
	relay, file := filepath.Join(t.TempDir(), "cdc-relay"), filepath.Join(t.TempDir(), "results.json")
	if out, err := exec.Command("go", "build", "-o", relay, "../../../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("build the relay: %v\n%s", err, out)
	}
	const cases = "publish,drain,publish-written,stream-keyed,relay-500"
	args := strings.Fields("cdc-relay-bench --rounds 1 --messages 200 --steady 1s --only " + cases)
	if err := run(t.Context(), append(args, "--relay", relay, "--json", file), t.Output()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var results []bench.Result
	if err := json.Unmarshal(content, &results); err != nil {
		t.Fatal(err)
	}
	if want := strings.Count(cases, ",") + 1; len(results) != want {
		t.Errorf("%d results, want %d", len(results), want)
	}
	for _, result := range results {
		if result.Rate <= 0 || result.Messages <= 0 || result.Duplicates > 0 {
			t.Errorf("%+v", result)
		}
		if paced := result.Case == "relay-500"; paced != (result.P50 > 0) {
			t.Errorf("latency of %s: %g ms", result.Case, result.P50)
		}
	}
}
