package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the README and all pages of docs, by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(docsFolder + "*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	texts := make(map[string]string)
	for _, file := range append(files, docsFolder+"../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	return texts
}

// prose are the paragraphs, list items, headings and table cells of a page, without code and the targets of links.
func prose(text string) []string {
	text = regexp.MustCompile("(?s)```.*?```|<!--.*?-->").ReplaceAllString(text, "\n\n")
	text = regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "X")
	text = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(text, "]")
	text = regexp.MustCompile(`(?m)^ *(#+ .*|[-*] |\d+\. )`).ReplaceAllString(text, "\n\n$1")
	text = regexp.MustCompile(`(?m)^(#+ .*)$`).ReplaceAllString(text, "$1\n\n")
	text = regexp.MustCompile(`\|`).ReplaceAllString(text, "\n\n")
	return regexp.MustCompile(`\n\s*\n`).Split(text, -1)
}

// forbidden are words that the docs do not use. The reader finds the others in the manuals or in the glossary.
const forbidden = `mend(s|ed|ing)?|anew|for as long as|but for|repeats|a repeat|holder|holds? the slot|stand-bys?|stands? by|standing by|` +
	`spill(s|ed)?|get(s)? going again|comes? to itself|refus(e|es|ed|al|als)|is away|goes away|as far as|the most \w+ that|` +
	`whatever|whoever|whichever|lease(s)?|breather|pulse|stray|courtesy|patience|stride|episode|quarantine|hedge|settle anew`

func TestDocsUseNoForbiddenWord(t *testing.T) {
	word := regexp.MustCompile(`(?i)\b(` + forbidden + `)\b|(?m:^|[.;:,] )[Ww]here (a|the|an|no|it|they|there|that|all|nobody|several) `)
	for page, text := range pages(t) {
		for _, paragraph := range prose(text) {
			for _, found := range word.FindAllString(paragraph, -1) {
				t.Errorf("%s: %q in %q", page, strings.TrimSpace(found), strings.TrimSpace(paragraph))
			}
		}
	}
}

func TestDocsHaveNoLongSentence(t *testing.T) {
	const most = 35
	end := regexp.MustCompile(`[.!?]["*)]*(\s+|$)`)
	for page, text := range pages(t) {
		for _, paragraph := range prose(text) {
			for _, sentence := range end.Split(paragraph, -1) {
				if n := len(strings.Fields(sentence)); n > most {
					t.Errorf("%s: %d words: %s", page, n, strings.Join(strings.Fields(sentence), " "))
				}
			}
		}
	}
}
