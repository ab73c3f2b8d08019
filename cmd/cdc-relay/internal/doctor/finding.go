package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Level is the severity of a finding.
type Level string

// The levels. Scripts rely on these words.
const (
	OK      Level = "ok"
	Warning Level = "warning"  // it works, but something should be done
	Problem Level = "critical" // it does not work, or not as promised
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
	Running     Area = "relays"
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

	fix steps
}

// chart takes findings about one area and one subject.
type chart struct {
	area     Area
	subject  string
	findings *[]Finding
}

// in and about return the chart for another area or subject. Their findings get into the same list.
func (c chart) in(area Area) chart { return chart{area, "", c.findings} }

func (c chart) about(subject string) chart { return chart{c.area, subject, c.findings} }

func (c chart) add(level Level, name string, fix steps, format string, args ...any) {
	words := strings.Fields(fmt.Sprintf(format, args...))
	*c.findings = append(*c.findings, Finding{
		Area: c.area, Name: name, Subject: c.subject, Level: level,
		Message: problem.OneLine(strings.Join(words, " ")), Fix: fix.lines(), fix: fix,
	})
}

func (c chart) ok(name, format string, args ...any) { c.add(OK, name, nil, format, args...) }

func (c chart) warn(name string, fix steps, format string, args ...any) {
	c.add(Warning, name, fix, format, args...)
}

func (c chart) wrong(name string, fix steps, format string, args ...any) {
	c.add(Problem, name, fix, format, args...)
}

// unknown reports a check that failed, if there is an error.
func (c chart) unknown(name string, err error) (failed bool) {
	switch {
	case pgcode.Is(err, pgerrcode.LockNotAvailable): // the relay waits for it, too
		c.wrong(name, fixOf(err), "could not be checked: %s", err)
	case err != nil:
		c.warn(name, fixOf(err), "could not be checked: %s", err)
	}
	return err != nil
}

// Split returns the findings that are worse than OK, and the others. They are in the order of Examine.
func Split(findings []Finding) (worse, ok []Finding) {
	for n, f := range findings {
		if f.Level == OK {
			return findings[:n], findings[n:]
		}
	}
	return findings, nil
}

// Summary counts the findings of each level: "1 critical, 2 warnings, 30 ok".
func Summary(findings []Finding) string {
	counts := map[Level]int{}
	for _, f := range findings {
		counts[f.Level]++
	}
	text := ""
	for _, level := range []Level{Problem, Warning} {
		if n := counts[level]; n > 0 {
			many := string(level)
			if level == Warning {
				many += "s"
			}
			text += counted(n, string(level), many) + ", "
		}
	}
	return fmt.Sprintf("%s%d ok", text, counts[OK])
}

// seeLog is the fix of last resort.
func seeLog() steps { return remark("-- see the other findings, and the server's log") }

// fixOf returns the hint of an error, which is one line, or seeLog.
func fixOf(err error) steps {
	var known *advice
	if errors.As(err, &known) {
		return known.fix
	}
	return hintFix(problem.Hint(err))
}

// hintFix is a hint, which is one line.
func hintFix(hint string) steps {
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
	return regexp.MustCompile(`^(--|#|[A-Z]{3,}[ ;]|` +
		`(cdc-relay|rabbitmq[a-z-]*|curl|pg_isready|timedatectl|aws|gcloud|az|supabase) )`).MatchString(line)
}

// counted returns a number and its noun, in the singular or the plural.
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// span writes a duration for people, rounded.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.Round(time.Second).String()
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
