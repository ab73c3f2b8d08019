package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/bench"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Makes the test program act as a process that the benchmark starts, if it has that process's name.
func TestMain(m *testing.M) {
	if first := argument(os.Args, 1); first == "limit" || first == "relay" {
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

func TestWrongUsageIsReported(t *testing.T) {
	for _, one := range []struct {
		args []string
		want string
	}{
		{[]string{"--only", "nothing"}, `there is no case "nothing"`},
		{[]string{"--only", "[", "--list"}, "is not a pattern"},
		{[]string{"--plan", "all", "--list"}, "want quick or full"},
		{[]string{"--rounds", "0"}, "--rounds: want at least 1"},
		{[]string{"--messages", "0"}, "--messages: want at least 1"},
		{[]string{"drain"}, `unexpected "drain"`},
		{[]string{"--profile", "here", "--relay", "/bin/true"}, "--profile excludes --relay and --against"},
		{[]string{"--profile", "here", "--against", "/bin/true"}, "--profile excludes --relay and --against"},
		{[]string{"insert", "--rounds", "0"}, "--rounds: want at least 1"},
		{[]string{"insert", "all"}, `unexpected "all"`},
		{[]string{"insert", "--nonsense"}, "flag provided but not defined"},
		{[]string{"--nonsense"}, "flag provided but not defined"},
	} {
		code, _, stderr := execute(t, one.args...)
		if code != exitUsage || !strings.Contains(stderr, one.want) {
			t.Errorf("%q: exit code %d, %s", one.args, code, stderr)
		}
	}
}

func TestPlansSelectTheCases(t *testing.T) {
	_, quick, _ := execute(t, "--list")
	_, full, _ := execute(t, "--list", "--plan", "full")
	if !strings.Contains(quick, "drain ") || strings.Contains(quick, "long-held") || !strings.Contains(full, "long-held") {
		t.Errorf("quick:\n%s\nfull:\n%s", quick, full)
	}
	_, some, _ := execute(t, "--list", "--only", "idle, drain-*")
	var names []string
	for line := range strings.Lines(some) {
		names = append(names, strings.Fields(line)[0])
	}
	if want := []string{"drain-poll", "drain-poller", "drain-quorum"}; !slices.Equal(names[:3], want) {
		t.Errorf("%v, want first %v", names, want)
	}
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
	t.Run("from end to end", func(t *testing.T) { measuredFromEndToEnd(t, relay) })
	t.Run("of an INSERT", measuredInserts)
	t.Run("with a profile", func(t *testing.T) { measuredWithAProfile(t, relay, postgres.Major()) })
}

func measuredFromEndToEnd(t *testing.T, relay string) {
	folder := t.TempDir()
	json, charts := filepath.Join(folder, "results.json"), filepath.Join(folder, "charts")
	const cases = "publish,read,drain,drain-poller,publish-written,stream-keyed,transaction,direct-500,relay-500,long-held"
	code, stdout, stderr := execute(t, "--relay", relay, "--only", cases, "--rounds", "1", "--messages", "200", "--steady", "1s",
		"--held", "3s", "--json", json, "--charts", charts)
	if code != exitDone {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	report, err := bench.ReadReport(json)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range report.Results {
		if result.Rate <= 0 || result.Messages <= 0 || result.Duplicates > 0 {
			t.Errorf("%+v", result)
		}
		if paced := strings.HasSuffix(result.Case, "-500") || result.Case == "long-held"; paced != (result.Latency != nil) {
			t.Errorf("latencies of %s: %+v", result.Case, result.Latency)
		}
	}
	for _, name := range []string{"drain", "stream-keyed", "long-held"} {
		// The system counts processor time in steps of 10 ms, which is about what the short cases take.
		if results := report.Of(name); len(results) != 1 || name == "long-held" && results[0].CPU.Measured <= 0 {
			t.Errorf("%s: %+v", name, results)
		}
	}
	code, again, stderr := execute(t, "--from", json, "--charts", charts)
	if code != exitDone || !strings.Contains(stdout, strings.TrimSpace(again)) {
		t.Errorf("exit code %d, %s; printed again:\n%s\nat first:\n%s", code, stderr, again, stdout)
	}
	if _, err := os.Stat(filepath.Join(charts, "latency.svg")); err != nil {
		t.Error(err)
	}
}

func measuredInserts(t *testing.T) {
	code, stdout, stderr := execute(t, "insert", "--rounds", "2", "--inserts", "400", "--variants")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitDone || len(lines) < 3 || !strings.HasPrefix(lines[0], "TABLE") || !strings.HasPrefix(lines[1], "bare ") ||
		!strings.HasPrefix(lines[2], "outbox ") || !strings.Contains(lines[1], " 1.00 ") {
		t.Errorf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
}

// measuredWithAProfile: the relays run within this program, one for each shard; setup uses the program in PATH.
func measuredWithAProfile(t *testing.T, relay string, major int) {
	t.Setenv("PATH", filepath.Dir(relay)+string(os.PathListSeparator)+os.Getenv("PATH"))
	folder := t.TempDir()
	cases := map[string]int{"drain": 1, "stream-2-shards": 2}
	if major < 15 {
		delete(cases, "stream-2-shards") // it needs row filters
	}
	only := strings.Join(slices.Sorted(maps.Keys(cases)), ",")
	code, stdout, stderr := execute(t, "--only", only, "--rounds", "1", "--messages", "100", "--profile", folder)
	if code != exitDone {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	for _, kind := range []string{"cpu", "allocs"} {
		for name, want := range cases {
			if found, err := filepath.Glob(filepath.Join(folder, name+"-*."+kind+".pprof")); err != nil || len(found) != want {
				t.Errorf("%s of %s: %v, %v", kind, name, found, err)
			}
		}
	}
}
