package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// files are the output of a run: the history, the logs of the relays, the report. Without --keep, the first two are in
// a temporary folder, which is removed unless something was found.
type files struct {
	folder  string // of the history
	logs    string // folder
	history *os.File
	report  string // file; empty: none
	kept    bool
}

func newFiles(o *options) (f *files, err error) {
	f = &files{report: o.json, folder: o.keep, kept: o.keep != ""}
	if !f.kept {
		if f.folder, err = os.MkdirTemp("", "cdc-relay-soak-"); err != nil {
			return nil, notRunError{fmt.Errorf("make a folder for the run: %w", err)}
		}
	}
	f.logs = filepath.Join(f.folder, "logs")
	err = os.MkdirAll(f.logs, 0o700)
	if err == nil {
		f.history, err = os.Create(filepath.Join(f.folder, "history.jsonl"))
	}
	if err != nil {
		return nil, usagef("make the files of the run: %s", err)
	}
	return f, nil
}

// keep keeps the folder.
func (f *files) keep() { f.kept = true }

// check judges the history.
func (f *files) check() (*history.Verdict, error) { return reread(f.history, history.Check) }

// effect returns what the history has in common with that of another run.
func (f *files) effect() ([]string, error) { return reread(f.history, history.Effect) }

func reread[T any](file *os.File, read func(io.Reader) (T, error)) (result T, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return result, fmt.Errorf("read the history again: %w", err)
	}
	if result, err = read(file); err != nil {
		return result, fmt.Errorf("check the history: %w", err)
	}
	return result, nil
}

func (f *files) writeReport(verdict *history.Verdict) error {
	if f.report == "" {
		return nil
	}
	file, err := os.Create(f.report)
	if err != nil {
		return err
	}
	return errors.Join(verdict.WriteJSON(file), file.Close())
}

// close removes the folder if it is not to be kept, and prints where the files are.
func (f *files) close(out io.Writer) error {
	err := f.history.Close()
	if f.kept {
		fmt.Fprintf(out, "the history: %s\nthe logs of the relays: %s\n", f.history.Name(), f.logs)
		return err
	}
	return errors.Join(err, os.RemoveAll(f.folder))
}
