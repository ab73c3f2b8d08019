package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cdc-relay/cdc-relay/test/services"
)

const deployFolder = "../../deploy/"

func readDeployed(t *testing.T, name string) string {
	t.Helper()
	return readDoc(t, "../deploy/"+name)
}

func deployed(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := fs.WalkDir(os.DirFS(deployFolder), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files[path] = readDeployed(t, path)
		}
		return err
	})
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return files
}

func TestDeployedSettingsExist(t *testing.T) {
	known := make(map[string]bool)
	for _, s := range allSettings() {
		known[variable(s.Name)] = true
	}
	for path, text := range deployed(t) {
		for _, name := range regexp.MustCompile(`CDC_RELAY_[A-Z_]*[A-Z]`).FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("deploy/%s: there is no variable %s", path, name)
			}
		}
		for _, port := range regexp.MustCompile(`\b94[0-9]{2}\b`).FindAllString(text, -1) {
			if !strings.HasSuffix(defaultConfig().httpAddr, ":"+port) {
				t.Errorf("deploy/%s: port %s is not that of --http-addr", path, port)
			}
		}
	}
}

func TestDeployedAndDocumentedConfigurationIsValid(t *testing.T) {
	configs := map[string]string{"systemd/config.yaml": readDeployed(t, "systemd/config.yaml")}
	configs["docs/configuration.md"] = blocks(t, "configuration.md", "yaml")[0]
	for object := range strings.SplitSeq(readDeployed(t, "kubernetes/relay.yaml"), "\n---\n") {
		var settings struct{ Data map[string]string }
		must(t, yaml.Unmarshal([]byte(object), &settings))
		if text := settings.Data["config.yaml"]; text != "" {
			configs["kubernetes/relay.yaml"] = text
		}
	}
	if len(configs) != 3 {
		t.Fatal("the ConfigMap has no config.yaml")
	}
	for path, text := range configs {
		cfg := defaultConfig()
		cfg.relay.DatabaseURL = someDatabase
		if err := errors.Join(readConfig(writeFile(t, "config.yaml", text), cfg), cfg.validate()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Every metric named in the docs and in deploy/ exists. The docs also have parts of names.
func TestNamedMetricsExist(t *testing.T) {
	names := registered(t)
	found := regexp.MustCompile(`cdc_relay_[a-z_]+`)
	documented := regexp.MustCompile(found.String() + `_(total|seconds|rows|bytes|connected|held|flight|phase|state)`)
	for path, pattern := range map[string]*regexp.Regexp{
		"deploy/grafana/cdc-relay.json": found, "deploy/prometheus/rules.yaml": found, "deploy/prometheus/rules_test.yaml": found,
		"docs/metrics.md": documented, "docs/operations.md": documented, "docs/contract.md": documented, "docs/delivery.md": documented,
		"docs/runbook.md": documented, "docs/events.md": documented, "docs/migrate.md": documented,
	} {
		all := pattern.FindAllString(readDoc(t, "../"+path), -1)
		if pattern == found && len(all) < 10 {
			t.Errorf("%s: only %d metrics", path, len(all))
		}
		for _, name := range all {
			if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); !names[name] && !names[base] {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
	}
}

func TestTheGrafanaDashboardIsValid(t *testing.T) {
	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, W int }
		}
	}
	must(t, json.Unmarshal([]byte(readDeployed(t, "grafana/cdc-relay.json")), &dashboard))
	for i, panel := range dashboard.Panels { // Grafana moves one that lies over another
		if panel.ID != i+1 || panel.Title == "" || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("panel %d: %+v", i, panel)
		}
	}
}

// The table of the runbook has each alert with its severity, time and chapter, and the metrics and thresholds of its
// expression.
func TestTheRunbookListsEveryAlert(t *testing.T) {
	rules := strings.Split(readDeployed(t, "prometheus/rules.yaml"), "- alert: ")[1:]
	rows := regexp.MustCompile(`(?m)^\| \[(\w+)\]\((#[a-z-]+)\) \| (\w+) \| (\w+) \| (.*) \|$`).
		FindAllStringSubmatch(readDoc(t, "runbook.md"), -1)
	if len(rows) != len(rules) || len(rows) == 0 {
		t.Fatalf("docs/runbook.md has %d alerts, want %d", len(rows), len(rules))
	}
	documented := make(map[string][]string)
	for _, row := range rows {
		documented[row[1]] = row[2:]
	}
	first := func(pattern, rule, otherwise string) string {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(rule); m != nil {
			return m[1]
		}
		return otherwise
	}
	for _, rule := range rules {
		name := first(`^(\w+)`, rule, "")
		row := documented[name]
		if row == nil {
			t.Errorf("docs/runbook.md does not list %s", name)
			continue
		}
		for i, want := range []string{
			first(`runbook(#[a-z-]+|\.md#[a-z-]+)`, rule, ""), first(`severity: (\w+)`, rule, ""), first(`for: (\w+)`, rule, "0m"),
		} {
			if row[i] != strings.TrimPrefix(want, ".md") {
				t.Errorf("docs/runbook.md: %s has %s, the rule has %s", name, row[i], want)
			}
		}
		expr, _, _ := strings.Cut(rule, "labels:")
		for _, metric := range regexp.MustCompile(`cdc_relay_([a-z_]+)`).FindAllStringSubmatch(expr, -1) {
			metric[1] = strings.TrimSuffix(metric[1], "_bucket")
			if !strings.Contains(row[3], "`"+metric[1]+"`") && name != "CdcRelayRestarts" {
				t.Errorf("docs/runbook.md: the condition of %s lacks %s", name, metric[1])
			}
		}
		for _, threshold := range regexp.MustCompile(`[<>] (\d[0-9e]*)`).FindAllString(expr, -1) {
			if !strings.HasSuffix(threshold, " 0") && !strings.Contains(row[3], threshold) {
				t.Errorf("docs/runbook.md: the condition of %s lacks %s", name, threshold)
			}
		}
	}
}

// The unit for several outboxes is the other one, with a folder for each instance.
func TestTheTemplateIsTheUnitWithItsOwnFolder(t *testing.T) {
	_, unit, _ := strings.Cut(readDeployed(t, "systemd/cdc-relay.service"), "\n\n")
	_, template, _ := strings.Cut(readDeployed(t, "systemd/cdc-relay@.service"), "\n\n")
	folder := strings.NewReplacer("/etc/cdc-relay/", "/etc/cdc-relay/%i/", "Description=cdc-relay:", "Description=cdc-relay %i:")
	if template != folder.Replace(unit) {
		t.Error("deploy/systemd/cdc-relay@.service differs from cdc-relay.service in more than its folder")
	}
}

// systemd does not restart the unit after exit code 2, a wrong setting. Go also exits with 2 if it crashes or the
// watchdog aborts it. The unit's environment makes that end by a signal instead, and systemd restarts it after any.
func TestSystemdRestartsACrashButNotAWrongSetting(t *testing.T) {
	unit := readDeployed(t, "systemd/cdc-relay.service")
	traceback := regexp.MustCompile(`(?m)^Environment=GOTRACEBACK=(.+)$`).FindStringSubmatch(unit)
	if traceback == nil || !strings.Contains(unit, "\nRestartPreventExitStatus=2\n") || !strings.Contains(unit, "\nLimitCORE=0\n") {
		t.Fatal("the unit has another setting")
	}
	if regexp.MustCompile(`(?m)^ProcSubset=pid`).MatchString(unit) { // the alert of restarts needs process_start_time_seconds
		t.Error("the unit hides /proc/stat")
	}
	must(t, syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})) // as LimitCORE
	env, _ := fresh(t)
	env["CDC_RELAY_AMQP_URL"], env["GOTRACEBACK"] = services.VHost(t), traceback[1]
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run")
	relay.await(t, `"streaming"`)
	relay.signal(t, syscall.SIGABRT)
	relay.ends(t, -1) // by a signal
}
