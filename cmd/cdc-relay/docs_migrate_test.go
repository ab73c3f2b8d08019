package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The new names in the tables of the page are flags, commands and metrics of the program, or stand in the reference.
func TestNewNamesOfTheMigrationPageExist(t *testing.T) {
	reference := ""
	for _, name := range []string{"contract.md", "commands.md", "delivery.md", "functions.md", "../clients/python/README.md", "../examples/exec/README.md"} {
		reference += readDoc(t, name)
	}
	metrics, app, checked := registered(t), (&process{}).app(), 0
	for _, row := range regexp.MustCompile(`(?m)^\|.*\|(.*)\|$`).FindAllStringSubmatch(readDoc(t, "migrate.md"), -1) {
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			checked++
			name, flag, _ := strings.Cut(strings.TrimPrefix(code[1], "cdc-relay "), " --")
			flag, _, _ = strings.Cut(flag, " ")
			switch {
			case strings.HasPrefix(name, "--"):
				if name, _, _ = strings.Cut(strings.TrimPrefix(name, "--"), " "); len(takersOf(name)) == 0 {
					t.Errorf("no command takes --%s", name)
				}
			case app.Command(name) != nil && (flag != "" || strings.HasPrefix(code[1], "cdc-relay ")):
				if flag != "" && !slices.Contains(takersOf(flag), name) {
					t.Errorf("cdc-relay %s takes no --%s", name, flag)
				}
			case strings.HasPrefix(name, "cdc_relay_"):
				if !metrics[name] {
					t.Errorf("there is no metric %s", name)
				}
			case strings.HasPrefix(name, "manage.py "):
				file := docsFolder + "../clients/python/cdc_relay/django/management/commands/" + strings.TrimPrefix(name, "manage.py ") + ".py"
				if _, err := os.Stat(file); err != nil && name != "manage.py check" { // Django's own
					t.Error(err)
				}
			case !strings.Contains(reference, "`"+name) && !strings.Contains(reference, name+"`"):
				t.Errorf("the reference has no `%s`", name)
			}
		}
	}
	if checked < 80 {
		t.Errorf("only %d names were found", checked)
	}
}
