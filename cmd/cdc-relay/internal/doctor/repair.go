package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// fix are the steps that end a finding, in this order. Each step is a value: nothing reads its line again.
type fix []step

// step is one statement, one command or one remark.
type step struct {
	kind stepKind
	// text is a statement without its semicolon, a shell command, or a remark with its "--" or "#".
	text string
	note string // for people, after the statement or the command
	safe bool   // --fix may run it
}

type stepKind int

const (
	remarkStep stepKind = iota
	sqlStep
	shellStep
	setupStep   // a call of cdc-relay setup
	upgradeStep // a call of cdc-relay setup --tables-only
)

// sql is one statement. Its names are quoted by outbox.QuoteIdentifier, outbox.QuoteLiteral or Table.Printed.
func sql(format string, args ...any) fix {
	return fix{{kind: sqlStep, text: strings.TrimRight(fmt.Sprintf(format, args...), "; ")}}
}

// command is one shell command. Its words are quoted by shell.
func command(format string, args ...any) fix {
	return fix{{kind: shellStep, text: fmt.Sprintf(format, args...)}}
}

// remark is text that begins with "--" or "#".
func remark(format string, args ...any) fix {
	return fix{{text: fmt.Sprintf(format, args...)}}
}

// noted adds a remark behind the last step.
func (f fix) noted(format string, args ...any) fix {
	f = slices.Clone(f)
	f[len(f)-1].note = fmt.Sprintf(format, args...)
	return f
}

// orElse turns a step into a remark: another way, for people.
func (f fix) orElse() fix { return remark("-- or: %s", f[0].line()) }

// safe allows --fix to run the steps: they only add something to the relay's own objects, or grant a privilege that a
// relay or the application needs on them.
func (f fix) safe() fix {
	f = slices.Clone(f)
	for i := range f {
		f[i].safe = true
	}
	return f
}

// lines are steps one after the other.
func lines(all ...fix) fix { return slices.Concat(all...) }

// line returns the step on one line, for people who paste it.
func (s step) line() string {
	text := s.text
	if problem.OneLine(text) != text && s.kind != remarkStep {
		return "-- it holds a name that cannot be shown on one line: " + problem.OneLine(text)
	}
	mark := "  # "
	if s.kind == sqlStep {
		text, mark = text+";", "  -- "
	}
	if s.note != "" {
		text += mark + s.note
	}
	return problem.OneLine(text)
}

func (f fix) lines() []string {
	var all []string
	for _, s := range f {
		all = append(all, s.line())
	}
	return all
}

// Repair is one step that --fix may run.
type Repair struct {
	// SQL is one statement, for the extended protocol, which accepts no second one; "": see Setup.
	SQL string
	// Setup: create what is missing, as cdc-relay setup does. Otherwise, without SQL: upgrade the tables.
	Setup bool

	line string
}

// String returns the line that a person would paste.
func (r Repair) String() string { return r.line }

// Repairs returns the fixes that only add something or grant a privilege that a relay needs, so they are safe to run
// without review. A fix is returned complete or not at all.
func Repairs(findings []Finding) []Repair {
	var repairs []Repair
	for _, f := range findings {
		unsafe := func(s step) bool { return s.kind != remarkStep && !s.safe }
		if f.Level == OK || slices.ContainsFunc(f.fix, unsafe) {
			continue
		}
		for _, s := range f.fix {
			if s.kind == remarkStep {
				continue
			}
			r := Repair{Setup: s.kind == setupStep, line: step{kind: s.kind, text: s.text}.line()}
			if s.kind == sqlStep {
				r.SQL = s.text
			}
			if !slices.Contains(repairs, r) {
				repairs = append(repairs, r)
			}
		}
	}
	return repairs
}

// quote quotes a name for a statement in a fix.
func quote(name string) string { return outbox.QuoteIdentifier(name) }

// shell quotes a word for the shell if necessary.
func shell(word string) string { return problem.ShellWord(word) }

// Run executes SQL with the extended protocol. The server rejects a text with a second statement.
func (r Repair) Run(ctx context.Context, conn *pgconn.PgConn) error {
	return conn.ExecParams(ctx, r.SQL, nil, nil, nil, nil).Read().Err
}
