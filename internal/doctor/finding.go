package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Level says how bad a finding is.
type Level string

// The levels. Scripts go by these words.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, and something should be done
	Problem Level = "problem" // it does not work, or not as promised
)

// Area says what a finding is about.
type Area string

// The areas. Scripts go by these words.
const (
	Postgres    Area = "postgres"
	Tables      Area = "tables"
	Grants      Area = "grants"
	Publication Area = "publication"
	Slot        Area = "slot"
	Cleanup     Area = "cleanup" // what holds up the removal of dead rows
	RabbitMQ    Area = "rabbitmq"
	Routing     Area = "routing"
)

// Finding is one line of the examination.
type Finding struct {
	Area Area `json:"area"`
	// Name is the check, stable from version to version: docs/check.md lists them.
	Name string `json:"name"`
	// Subject is which one of several, such as the exchange; else empty.
	Subject string `json:"subject,omitempty"`
	Level   Level  `json:"level"`
	// Message is one line for people. Its words may change.
	Message string `json:"message"`
	// Fix is lines to paste, SQL or commands; remarks begin with "--" or "#". Empty if there is nothing to do.
	Fix []string `json:"fix,omitempty"`
}

// chart collects the findings of one area.
type chart struct {
	area     Area
	findings []Finding
}

func (c *chart) add(level Level, name, fix, format string, args ...any) *Finding {
	f := Finding{Area: c.area, Name: name, Level: level, Message: oneLine(fmt.Sprintf(format, args...))}
	if fix != "" {
		f.Fix = strings.Split(fix, "\n")
	}
	c.findings = append(c.findings, f)
	return &c.findings[len(c.findings)-1]
}

func (c *chart) ok(name, format string, args ...any) *Finding {
	return c.add(OK, name, "", format, args...)
}

func (c *chart) warn(name, fix, format string, args ...any) *Finding {
	return c.add(Warning, name, fix, format, args...)
}

func (c *chart) wrong(name, fix, format string, args ...any) *Finding {
	return c.add(Problem, name, fix, format, args...)
}

// unknown is for what could not be looked at.
func (c *chart) unknown(name string, err error) *Finding {
	return c.warn(name, fixOf(err), "could not be looked at: %s", err)
}

// seeLog is for what this program knows nothing better for.
const seeLog = "-- see what else is found here, and the server's log"

// about names which of several a finding is about.
func (f *Finding) about(subject string) { f.Subject = subject }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// sql ends a statement that stands elsewhere without its semicolon.
func sql(statement string) string { return strings.TrimRight(statement, "; ") + ";" }

// lines joins what is to be typed one after the other.
func lines(commands ...string) string {
	var kept []string
	for _, command := range commands {
		if command != "" {
			kept = append(kept, command)
		}
	}
	return strings.Join(kept, "\n")
}

// fixOf is the hint of an error, or what helps with any.
func fixOf(err error) string {
	var knows interface{ Hint() string }
	if errors.As(err, &knows) {
		if hint := knows.Hint(); pasteable(hint) {
			return hint
		} else if hint != "" {
			return "# " + hint
		}
	}
	return seeLog
}

// pasteable: it begins as SQL, a command or a remark does.
func pasteable(line string) bool {
	return regexp.MustCompile(`^(--|#|[A-Z]{3,}[ ;]|cdc-relay |rabbitmq[a-z-]* |curl |pg_isready |timedatectl |aws |gcloud |az |supabase )`).MatchString(line)
}

// counted is a number and what it counts, in the singular or the plural.
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
