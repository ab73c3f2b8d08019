package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Level is the severity of a finding.
type Level string

// The levels. Scripts rely on these words.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, but something should be done
	Problem Level = "problem" // it does not work, or not as promised
)

// Area is the part that a finding is about.
type Area string

// The areas. Scripts rely on these words.
const (
	Postgres    Area = "postgres"
	Tables      Area = "tables"
	Grants      Area = "grants"
	Publication Area = "publication"
	Slot        Area = "slot"
	Cleanup     Area = "cleanup" // what delays the removal of dead rows
	RabbitMQ    Area = "rabbitmq"
	Routing     Area = "routing"
)

// Finding is the result of one check.
type Finding struct {
	Area Area `json:"area"`
	// Name identifies the check. It is stable across versions: docs/check.md lists all names.
	Name string `json:"name"`
	// Subject is the object, such as an exchange, if a check has several; else empty.
	Subject string `json:"subject,omitempty"`
	Level   Level  `json:"level"`
	// Message is one line for people. Its wording may change.
	Message string `json:"message"`
	// Fix are lines to paste, SQL or commands. Remarks begin with "--" or "#". Empty if there is nothing to do.
	Fix []string `json:"fix,omitempty"`

	fix fix
}

// chart collects the findings of one area.
type chart struct {
	area     Area
	findings []Finding
}

func (c *chart) add(level Level, name string, fix fix, format string, args ...any) *Finding {
	f := Finding{
		Area:    c.area,
		Name:    name,
		Level:   level,
		Message: oneLine(fmt.Sprintf(format, args...)),
		Fix:     fix.lines(),
		fix:     fix,
	}
	c.findings = append(c.findings, f)
	return &c.findings[len(c.findings)-1]
}

func (c *chart) ok(name, format string, args ...any) *Finding {
	return c.add(OK, name, nil, format, args...)
}

func (c *chart) warn(name string, fix fix, format string, args ...any) *Finding {
	return c.add(Warning, name, fix, format, args...)
}

func (c *chart) wrong(name string, fix fix, format string, args ...any) *Finding {
	return c.add(Problem, name, fix, format, args...)
}

// unknown is for a check that failed.
func (c *chart) unknown(name string, err error) *Finding {
	return c.warn(name, fixOf(err), "could not be checked: %s", err)
}

// seeLog is the fix of last resort.
func seeLog() fix { return remark("-- see the other findings, and the server's log") }

// about sets the subject.
func (f *Finding) about(subject string) { f.Subject = subject }

func oneLine(text string) string { return problem.OneLine(strings.Join(strings.Fields(text), " ")) }

// fixOf returns the hint of an error, which is one line, or seeLog.
func fixOf(err error) fix {
	var known *advice
	if errors.As(err, &known) {
		return known.fix
	}
	return hintFix(problem.Hint(err))
}

// hintFix is a hint, which is one line.
func hintFix(hint string) fix {
	switch {
	case hint == "":
		return seeLog()
	case strings.HasPrefix(hint, "--") || strings.HasPrefix(hint, "#"):
		return remark("%s", hint)
	case pasteable(hint):
		return command("%s", hint)
	default:
		return remark("# %s", hint)
	}
}

// pasteable reports whether a line begins like SQL, a command or a remark.
func pasteable(line string) bool {
	const begins = `^(--|#|[A-Z]{3,}[ ;]|` +
		`(cdc-relay|rabbitmq[a-z-]*|curl|pg_isready|timedatectl|aws|gcloud|az|supabase) )`
	return regexp.MustCompile(begins).MatchString(line)
}

// counted returns a number and its noun, in the singular or the plural.
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
