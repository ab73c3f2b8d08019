// Command licenses writes the licences of all modules that are part of the released programs into one file. It fails if
// one of them is copyleft, unknown or missing.
//
//	go -C test/deploy run ./licenses ../../bin/THIRD_PARTY_LICENSES
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is relative to the root of the repository.
const program = "./cmd/cdc-relay"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go -C test/deploy run ./licenses FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// write writes the file name.
func write(name string) error {
	all := notices{}
	for _, platform := range platforms() {
		if err := all.addProgram("../..", platform); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := os.WriteFile(name, all.text(), 0o644); err != nil {
		return fmt.Errorf("write licences: %w", err)
	}
	return nil
}

// platform is an operating system and a processor. Each has modules of its own.
type platform struct{ system, processor string }

// platforms returns those of .goreleaser.yaml.
func platforms() []platform {
	var all []platform
	for _, system := range []string{"linux", "darwin", "windows"} {
		all = append(all, platform{system, "amd64"}, platform{system, "arm64"})
	}
	return all
}

// notices are the texts of licences and notices, each with the modules that it applies to.
type notices map[string][]string

// addProgram adds the modules that the program of one platform contains, and Go's own library.
func (n notices) addProgram(root string, on platform) error {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}|{{.Dir}}|{{$.Dir}}{{end}}{{end}}`
	list := exec.Command("go", "list", "-deps", "-f", format, program)
	list.Dir = root
	list.Env = append(os.Environ(), "GOOS="+on.system, "GOARCH="+on.processor, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	lines, err := list.Output()
	if err != nil {
		return fmt.Errorf("list packages of %s/%s: %w", on.system, on.processor, err)
	}
	for line := range strings.Lines(string(lines)) {
		part := strings.Split(strings.TrimSpace(line), "|")
		if len(part) != 3 {
			continue // the line of a package without a module is empty
		}
		if err := n.addPackage(part[0], part[1], part[2]); err != nil {
			return err
		}
	}
	return n.addLibrary(root)
}

// addLibrary adds the licence of Go: each program contains parts of its library.
func (n notices) addLibrary(root string) error {
	ask := exec.Command("go", "env", "GOVERSION", "GOROOT")
	ask.Dir = root
	answer, err := ask.Output()
	if err != nil {
		return fmt.Errorf("ask for the folder of Go: %w", err)
	}
	version, folder, _ := strings.Cut(strings.TrimSpace(string(answer)), "\n")
	return n.addPackage("Go standard library "+version, folder, folder)
}

// addPackage adds the files of a package's folder and of those above it, up to the module's. Copied code sometimes has
// its own licence in a folder of its own.
func (n notices) addPackage(module, top, folder string) error {
	licensed := false
	for {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return fmt.Errorf("read folder of %s: %w", module, err)
		}
		for _, entry := range entries {
			known, err := n.addFile(module, folder, entry)
			if err != nil {
				return err
			}
			licensed = licensed || known
		}
		if folder == top {
			break
		}
		folder = filepath.Dir(folder)
	}
	if !licensed {
		return fmt.Errorf("%s has no licence", module)
	}
	return nil
}

// The names of files with the terms of a licence, and of those that must be passed on with them.
var (
	termsFile  = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-._].*)?$`)
	noticeFile = regexp.MustCompile(`(?i)^(notice|patents|copyright)([-._].*)?$`)
)

// addFile reports whether the file has the terms of a known licence.
func (n notices) addFile(module, folder string, entry fs.DirEntry) (bool, error) {
	terms, notice := termsFile.MatchString(entry.Name()), noticeFile.MatchString(entry.Name())
	if !entry.Type().IsRegular() || filepath.Ext(entry.Name()) == ".go" || !terms && !notice {
		return false, nil
	}
	name := filepath.Join(folder, entry.Name())
	content, err := os.ReadFile(name)
	if err != nil {
		return false, fmt.Errorf("read licence of %s: %w", module, err)
	}
	if terms {
		if err := check(string(content)); err != nil {
			return false, fmt.Errorf("%s: %s: %w", module, name, err)
		}
	}
	text := strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))
	if !slices.Contains(n[text], module) {
		n[text] = append(n[text], module)
	}
	return terms, nil
}

// words are what remains of a text without punctuation, quotes and line ends.
var words = regexp.MustCompile(`[a-z0-9]+`)

// permissive are parts of the licences that only ask for their text to be passed on: Apache, MIT, BSD, ISC, Unlicense.
var permissive = []string{
	"apache license version 2 0",
	"permission is hereby granted free of charge to any person obtaining a copy",
	"redistribution and use in source and binary forms with or without modification",
	"permission to use copy modify and distribute this software for any purpose with or without fee",
	"permission to use copy modify and or distribute this software for any purpose with or without fee",
	"this is free and unencumbered software released into the public domain",
}

// copyleft are parts of licences that ask for more: source code, or the same licence for the whole program.
var copyleft = []string{
	"general public license", "affero", "mozilla public license", "eclipse public license", "sharealike",
	"common development and distribution", "european union public licence", "server side public license",
	"business source license",
}

// check fails if a text is not the terms of a permissive licence.
func check(text string) error {
	plain := strings.Join(words.FindAllString(strings.ToLower(text), -1), " ")
	isIn := func(part string) bool { return strings.Contains(plain, part) }
	if i := slices.IndexFunc(copyleft, isIn); i >= 0 {
		return fmt.Errorf("a licence with %q cannot be part of a release", copyleft[i])
	}
	if !slices.ContainsFunc(permissive, isIn) {
		return errors.New("unknown licence")
	}
	return nil
}

const introduction = `cdc-relay contains parts of the modules below. Each text applies to the modules above it.

The image also contains the certificates of public authorities that Mozilla publishes under the Mozilla Public License
2.0 (https://www.mozilla.org/MPL/2.0/), as Debian distributes them in the package ca-certificates.
`

// text returns the content of the file: the same for the same modules.
func (n notices) text() []byte {
	var entries []string
	for text, modules := range n {
		slices.Sort(modules)
		entries = append(entries, strings.Join(modules, "\n")+"\n\n"+text+"\n")
	}
	slices.Sort(entries)
	var out bytes.Buffer
	out.WriteString(introduction)
	for _, entry := range entries {
		out.WriteString("\n" + strings.Repeat("=", 80) + "\n" + entry)
	}
	return out.Bytes()
}
