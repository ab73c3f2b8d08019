package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A promise whose test was renamed or removed has no proof.
func TestTestsNamedInTheDocsExist(t *testing.T) {
	files, err := filepath.Glob("../../test/e2e/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests found: %v", err)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		tests.Write(text)
	}
	_, part, _ := strings.Cut(readDoc(t, "../CONTRIBUTING.md"), "## Tests of the promises")
	part, _, _ = strings.Cut(part, "\n## ")
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(part, -1)
	if len(named) == 0 {
		t.Error("CONTRIBUTING.md names no tests")
	}
	for _, name := range named {
		if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("CONTRIBUTING.md names %s, which e2e does not have", name[1])
		}
	}
}
