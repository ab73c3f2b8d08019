package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The index is the only list of pages: the site's sidebar is generated from it.
func TestEachPageOfTheDocsIsOnTheIndexOnce(t *testing.T) {
	index := readDoc(t, "README.md")
	for _, group := range []string{"Start", "Use", "Operate", "Look up"} {
		if !strings.Contains(index, "\n## "+group+"\n\n- [") {
			t.Errorf("docs/README.md has no group %s", group)
		}
	}
	var listed []string
	for _, line := range regexp.MustCompile(`(?m)^- \[[^]]+\]\(([a-z-]+\.md)\): .+$`).FindAllStringSubmatch(index, -1) {
		listed = append(listed, line[1])
	}
	if n := strings.Count(index, "\n- "); n != len(listed) {
		t.Errorf("%d of %d lines of docs/README.md have the form `- [Title](page.md): question`", len(listed), n)
	}
	files, err := filepath.Glob(docsFolder + "*.md")
	must(t, err)
	var want []string
	for _, file := range files {
		if name := filepath.Base(file); name != "README.md" {
			want = append(want, name)
		}
	}
	slices.Sort(listed)
	if !slices.Equal(listed, want) {
		t.Errorf("docs/README.md lists %s\nthe pages are %s", listed, want)
	}
}

// headings returns the anchors that GitHub gives the headings of a text.
func headings(text string) map[string]bool {
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	found := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		title := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(heading[1], "$1")
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(title), "")
		anchor := strings.ReplaceAll(name, " ", "-")
		for n := 1; found[anchor]; n++ {
			anchor = strings.ReplaceAll(name, " ", "-") + "-" + strconv.Itoa(n)
		}
		found[anchor] = true
	}
	return found
}

// The links of every Markdown file of the repository lead to files and headings that exist.
func TestLinkedFilesAndHeadingsExist(t *testing.T) {
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	list.Dir = "../.."
	names, err := list.Output()
	if err != nil {
		t.Skipf("it is no checkout of git: %v", err)
	}
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	checked := 0
	for _, name := range strings.Fields(string(names)) {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		must(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			path, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(path, ":") || strings.HasPrefix(path, "/") { // of another site, or of ours: test/site checks those
				continue
			}
			checked++
			target := filepath.Join("../..", name)
			if path != "" {
				target = filepath.Join(filepath.Dir(target), path)
			}
			switch text, err := os.ReadFile(target); {
			case os.IsNotExist(err):
				t.Errorf("%s: there is no file %s", name, link[1])
			case anchor != "" && !headings(string(text))[anchor]:
				t.Errorf("%s: there is no heading %s", name, link[1])
			}
		}
	}
	if checked < 300 {
		t.Errorf("only %d links were found", checked)
	}
}
