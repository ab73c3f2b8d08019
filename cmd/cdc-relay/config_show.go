package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

func (p *process) configCommand() *cli.Command {
	flags := func() []cli.Flag {
		return relayFlags("dead-letter-retention", "http-addr", "liveness-file", "json")
	}
	return &cli.Command{
		Name:      "config",
		Usage:     "show the settings and where each comes from, or check them",
		UsageText: "cdc-relay config show|validate [FLAGS]",
		Description: `Reads flags, environment and file as "run" does. It connects to nothing, so it also works
before the servers are there. Give it the flags that the relay gets.`,
		Subcommands: []*cli.Command{
			{
				Name:      "show",
				Usage:     "list each setting with its value and its source",
				UsageText: "cdc-relay config show [FLAGS]",
				Description: `Lists the settings of "run", and others that are in the file. The source is a flag, a
variable, a line of the file, or the default. Passwords are shown as ***.`,
				Flags:  flags(),
				Action: p.configShow,
			},
			{
				Name:      "validate",
				Usage:     "check the settings without a server",
				UsageText: "cdc-relay config validate [FLAGS]",
				Description: `Checks the settings of "run": names, values, and whether they fit together; the files with
URLs and certificates are read. It prints all mistakes. Exit code 0 if there are none, else 2.`,
				Flags:  flags(),
				Action: p.configValidate,
			},
		},
	}
}

type configView struct {
	Settings []settings.Shown `json:"settings"`
}

func (p *process) configShow(c *cli.Context) error {
	cfg, err := p.withHandler(c)
	if err != nil {
		return err
	}
	var view configView
	for _, s := range shownSettings(c, cfg) {
		view.Settings = append(view.Settings, settings.Effective(s.Info, cfg.given, withoutPassword))
	}
	if cfg.json {
		return p.terminal.JSON(view)
	}
	g := p.terminal.Table("SETTING", "VALUE", "SOURCE")
	for _, v := range view.Settings {
		value := "-"
		if v.Value != nil {
			value = show.OrElse(show.Printable(*v.Value), "''")
		}
		source := v.Source
		if v.Source == settings.FromEnvironment || v.Source == settings.FromFile {
			source = show.Printable(*v.Place)
		}
		g.Row(v.Name, value, source)
	}
	return g.Write()
}

// shownSettings are the settings of run, and all others that the user gave.
func shownSettings(c *cli.Context, cfg *config) []setting {
	ofRun := settings.FlagsOf(c.Command.Flags)
	return slices.DeleteFunc(allSettings(), func(s setting) bool {
		listed := slices.ContainsFunc(ofRun, func(f *settings.Flag) bool { return f.Name == s.Name })
		_, given := cfg.given[s.Name]
		return s.FlagOnly || (!listed && !given)
	})
}

// withoutPassword returns the value of a setting without passwords. Only settings with a name that ends in url can
// contain one.
func withoutPassword(name, text string) string {
	if !strings.HasSuffix(name, "-url") {
		return string(show.Redact([]byte(text)))
	}
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL { // key=value words of Postgres
		const quoted, plain = `'(?:[^'\\]|\\.)*'`, `(?:\\.|[^\s\\])+`
		password := regexp.MustCompile(`(?i)(\w*pass(?:word|wd)?\s*=\s*)(` + quoted + `|` + plain + `)`)
		return password.ReplaceAllString(text, "$1***")
	}
	authority, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, _, hasPassword := strings.Cut(authority[:at], ":")
		if hasPassword {
			user += ":***"
		}
		authority = user + authority[at:]
	}
	if query == "" {
		return scheme + "://" + authority
	}
	parameters := strings.Split(query, "&")
	for i, parameter := range parameters {
		key, _, _ := strings.Cut(parameter, "=")
		plain, err := url.QueryUnescape(key)
		if err != nil || regexp.MustCompile(`(?i)pass(word|wd)?$`).MatchString(plain) {
			parameters[i] = key + "=***"
		}
	}
	return scheme + "://" + authority + "?" + strings.Join(parameters, "&")
}

// validView is the JSON output of config validate.
type validView struct {
	Valid  bool     `json:"valid"`
	Errors []string `json:"errors,omitempty"`
}

func (p *process) configValidate(c *cli.Context) error {
	cfg, err := p.relayConfig(c)
	switch {
	case cfg != nil && cfg.json:
		return errors.Join(p.terminal.JSON(validView{err == nil, failure.Lines(err)}), err)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintln(p.terminal.Out, "valid")
	return err
}
