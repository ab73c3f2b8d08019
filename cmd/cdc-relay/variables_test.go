package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestUnknownVariablesAreReported(t *testing.T) {
	env := environment{
		"CDC_RELAY_DATABSE_URL": someDatabase, "CDC_RELAY_XYZZY": "1", "CDC_RELAY_YES": "true", "CDC_RELAY_ALL": "true", "CDC_RELAY_SLOT": "known",
		// Kubernetes sets these for the Services cdc-relay and cdc-relay-metrics.
		"CDC_RELAY_SERVICE_HOST": "10.0.0.1", "CDC_RELAY_SERVICE_PORT_METRICS": "9464", "CDC_RELAY_PORT": "tcp://10.0.0.1:9464",
		"CDC_RELAY_PORT_9464_TCP_ADDR": "10.0.0.1", "CDC_RELAY_METRICS_PORT_9464_TCP": "tcp://10.0.0.1:9464", "CDC_RELAY_METRICS_SERVICE_PORT": "9464",
		"CDC_RELAY_SERVICES": "local", "CDC_RELAYED": "1", "CDC_RELAY_FILTER": "1",
	}
	r := cdcRelay(t, env, "setup", "--tables-only", "--print-sql")
	want(t, r, exitDone)
	const warnings = `cdc-relay: warning: CDC_RELAY_ALL has no effect: --all can only be given as a flag
cdc-relay: warning: CDC_RELAY_DATABSE_URL has no effect: did you mean CDC_RELAY_DATABASE_URL?
cdc-relay: warning: CDC_RELAY_FILTER has no effect: it is no setting; docs/configuration.md lists them
cdc-relay: warning: CDC_RELAY_XYZZY has no effect: it is no setting; docs/configuration.md lists them
cdc-relay: warning: CDC_RELAY_YES has no effect: --yes can only be given as a flag
`
	if r.stderr != warnings {
		t.Errorf("got %s", r.stderr)
	}
	for _, command := range []string{"run", "drain", "console"} { // they write a log
		r := cdcRelay(t, environment{"CDC_RELAY_DATABSE_URL": someDatabase, "CDC_RELAY_LOG_FORMAT": "json"}, command)
		want(t, r, exitUsage)
		if line := logLines(t, r.stderr)["config_warning"]; line["msg"] != "CDC_RELAY_DATABSE_URL has no effect" ||
			line["level"] != "WARN" || line["hint"] != "did you mean CDC_RELAY_DATABASE_URL?" || strings.Contains(r.stderr, "warning:") {
			t.Errorf("%s: %s", command, r.stderr)
		}
	}
}

// Each variable that a script or a test reads is either a setting or known not to be one.
func TestVariablesOfScriptsAreNotReported(t *testing.T) {
	var settings []string
	for _, s := range allSettings() {
		settings = append(settings, variable(s.Name))
	}
	found := 0
	for _, folder := range []string{"scripts", "test", "internal", ".ci", "examples"} {
		err := filepath.WalkDir("../../"+folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				if entry != nil && entry.Name() == "node_modules" {
					return fs.SkipDir
				}
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, name := range regexp.MustCompile(`CDC_RELAY_[A-Z0-9_]*[A-Z0-9]\b`).FindAllString(string(text), -1) {
				found++
				if !slices.Contains(settings, name) && !foreignVariable(strings.TrimPrefix(name, "CDC_RELAY_")) {
					t.Errorf("%s: %s is neither a setting nor in variables.go", path, name)
				}
			}
			return nil
		})
		must(t, err)
	}
	if found < 20 {
		t.Errorf("found only %d names", found)
	}
}

// The environment cannot delete anything or skip a question. Only flags can.
func TestVariablesCannotSkipAQuestion(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, insertDead, 1, uuid(1), nil)
	env["CDC_RELAY_YES"], env["CDC_RELAY_TABLES"] = "true", "true"
	wantError(t, cdcRelay(t, env, "delete", "--state", "dead", "--all"), "not confirmed: nothing was deleted")
	env["CDC_RELAY_DRY_RUN"] = "true"
	wantOutput(t, cdcRelay(t, env, "delete", "--state", "dead", "--all", "--yes"), "deleted 1 dead letter")
}
