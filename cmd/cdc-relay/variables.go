package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// foreignVariable reports whether a variable has the prefix of settings but is not one: variables of this repository's
// scripts and tests, and those that Kubernetes sets for a Service with a name that begins with cdc-relay.
func foreignVariable(name string) bool {
	return regexp.MustCompile(`^((TEST|SOAK|BENCH)_.*|ALLOW_SKIPS|BINARY|DOCKER_ROOT|EXAMPLES|FUZZTIME|INSTALL|LONG|PG_BIN|SERVICES(_DIR|_STATE)?` +
		`|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`).MatchString(name)
}

// warnOfVariables warns of variables that look like settings and have no effect.
func (p *process) warnOfVariables() {
	if p.environ == nil {
		return
	}
	const prefix = "CDC_RELAY_"
	var known []string
	forFlags := make(map[string]string)
	for _, s := range slices.Concat(allSettings(), filterSettings(), []*setting{allSetting()}) {
		name := strings.TrimPrefix(s.envName(), prefix)
		if s.flagOnly {
			forFlags[name] = s.name
		} else {
			known = append(known, name)
		}
	}
	var variables []string
	for _, pair := range p.environ() {
		variable, _, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		if ours && !slices.Contains(known, name) && !foreignVariable(name) {
			variables = append(variables, name)
		}
	}
	slices.Sort(variables)
	for _, name := range variables {
		advice := "it is no setting; docs/configuration.md lists them"
		if flag, ok := forFlags[name]; ok {
			advice = fmt.Sprintf("--%s can only be given as a flag", flag)
		} else if near := nearest(name, known); near != "" {
			advice = "did you mean " + prefix + near + "?"
		}
		fmt.Fprintf(p.stderr, "cdc-relay: warning: %s%s has no effect: %s\n", prefix, printable(name), advice)
	}
}
