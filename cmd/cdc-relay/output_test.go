package main

import (
	"bytes"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
)

func TestTableColumnsAreAligned(t *testing.T) {
	var out bytes.Buffer
	p := &process{stdout: &out, lookupEnv: environment{}.lookup}
	table := p.newTable("name", "number")
	table.Row("short", "1")
	table.Row(text.FgRed.Sprint("a longer name"), "22")
	table.Row("größer", "3")
	if err := table.write(); err != nil {
		t.Fatal(err)
	}
	const want = "name           number\nshort          1\n\x1b[31ma longer name\x1b[0m  22\ngrößer         3\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

func TestATableWithoutRowsIsNotPrinted(t *testing.T) {
	var out bytes.Buffer
	p := &process{stdout: &out}
	if err := p.newTable("name").write(); err != nil || out.Len() > 0 {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestColoursAppearOnlyOnATerminal(t *testing.T) {
	p := &process{stdout: &bytes.Buffer{}, lookupEnv: environment{}.lookup}
	if got := p.paint(text.FgRed, "words"); got != "words" {
		t.Errorf("got %q", got)
	}
}
