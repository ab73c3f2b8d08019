package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

func (p *process) runCommand(c *cli.Context, asked <-chan struct{}) error {
	opts, err := readOptions(c)
	if err != nil {
		return err
	}
	if opts.relay, err = findProgram(opts.relay, opts.program()); err != nil {
		return err
	}
	if opts.runs > 0 {
		return p.metamorphic(c.Context, asked, opts)
	}
	files, err := newFiles(opts)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "seed %d\n", opts.seed)
	s := &soak{opts: opts}
	s.init(files, &screen{out: p.stdout})
	began := history.Run{
		Seed: opts.seed, Command: opts.command(p.args), Flags: opts.flags, RecoverWithin: opts.recoverWithin,
	}
	err = func() (err error) {
		defer func() { err = errors.Join(err, s.closeWorld(c.Context)) }()
		return s.run(c.Context, asked, began)
	}()
	if err != nil {
		files.keep()
		return notRunError{errors.Join(err, files.close(p.stdout))}
	}
	return p.conclude(s, files)
}

// conclude checks the history and writes the reports.
func (p *process) conclude(s *soak, files *files) error {
	verdict, err := files.check()
	if err != nil {
		files.keep()
		return notRunError{errors.Join(err, files.close(p.stdout))}
	}
	s.addTo(verdict)
	fmt.Fprintln(p.stdout)
	if s.opts.peer() {
		return p.concludePeer(verdict, files)
	}
	err = errors.Join(verdict.WriteText(p.stdout), files.writeReport(verdict))
	if !verdict.Passed() {
		files.keep()
	}
	if err := errors.Join(err, files.close(p.stdout)); err != nil {
		return notRunError{err}
	}
	if err := conclusion(verdict); err != nil {
		return err
	}
	return s.unmade()
}

// concludePeer reports what was counted: the promises that verdicts judge are those of cdc-relay.
func (p *process) concludePeer(verdict *history.Verdict, files *files) error {
	err := errors.Join(writeTable(p.stdout, []*history.Verdict{verdict}), files.writeReport(verdict))
	if err := errors.Join(err, files.close(p.stdout)); err != nil {
		return notRunError{err}
	}
	if verdict.Incomplete != "" {
		return conclusion(verdict)
	}
	return nil
}

// findProgram finds the program to test: the file, or the one next to this program.
func findProgram(file, name string) (string, error) {
	if file == "" {
		self, err := os.Executable()
		if err != nil {
			return "", notRunError{err}
		}
		file = filepath.Join(filepath.Dir(self), name)
	}
	if !isProgram(file) {
		return "", usagef("--relay: %s is not a program", file)
	}
	return filepath.Abs(file)
}

func isProgram(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
