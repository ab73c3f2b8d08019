package show

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// controlsText reports whether a terminal or a browser obeys a character instead of showing it: control characters,
// also those from U+0080 to U+009F, and characters that hide, reorder or break text. Joiners within words and emoji
// are harmless.
func controlsText(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r <= 0x9f:
		return true
	case r < 0x61c:
		return false
	}
	return r == 0x61c || r == 0x180e || r == 0x200b || r == 0x200e || r == 0x200f || r >= 0x2028 && r <= 0x202e ||
		r >= 0x2060 && r <= 0x206f || r == 0xfeff || r >= 0xfff9 && r <= 0xfffb || r >= 0xe0000 && r <= 0xe007f
}

// appendEscape appends the escape of a character in the form of JSON, so that the value of a JSON string stays the
// same.
func appendEscape(b []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		return fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}

// ownColour matches the codes that this program uses for colours. None of them hides text.
var ownColour = regexp.MustCompile(`^\x1b\[(0|1|2|22|3[123]|9[0-7])(;2)?m`)

// SafeWriter is the only way to the standard output and the standard error. It removes passwords, and writes characters
// that control a terminal as escapes: names, errors and values come from other people. It is safe for concurrent use.
type SafeWriter struct {
	Out io.Writer
	// Redacts: passwords are removed.
	Redacts bool
	// Colours: ownColour may pass.
	Colours bool

	mu   sync.Mutex
	rest []byte // the start of a character whose other bytes are still to come
}

// Write implements io.Writer.
func (w *SafeWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := p
	if len(w.rest) > 0 {
		text = append(w.rest, p...)
		w.rest = nil
	}
	if w.Redacts {
		text = Redact(text)
	}
	safe, rest := escaped(text, w.Colours)
	w.rest = append(w.rest, rest...)
	if _, err := w.Out.Write(safe); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Unwrap returns the underlying writer, so that callers can check if it is a terminal.
func (w *SafeWriter) Unwrap() io.Writer { return w.Out }

// escaped returns the text without characters that control a terminal, except line breaks and tabs. rest is the start
// of a character at the end.
func escaped(text []byte, colours bool) (safe, rest []byte) {
	from := 0 // text up to here is in safe
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			if !utf8.FullRune(text[i:]) {
				rest, text = text[i:], text[:i]
				break
			}
			r, size = utf8.DecodeRune(text[i:])
		}
		invalid := r == utf8.RuneError && size == 1
		if r == '\n' || r == '\t' || !invalid && !controlsText(r) {
			i += size
			continue
		}
		if colours && r == '\x1b' {
			if code := ownColour.Find(text[i:]); code != nil {
				i += len(code)
				continue
			}
		}
		safe = append(safe, text[from:i]...)
		if invalid {
			safe = utf8.AppendRune(safe, utf8.RuneError)
		} else {
			safe = appendEscape(safe, r)
		}
		i += size
		from = i
	}
	if from == 0 {
		return text, rest
	}
	return append(safe, text[from:]...), rest
}

// SafeText is escaped for a whole text.
func SafeText(s string) string {
	safe, rest := escaped([]byte(s), false)
	return string(safe) + strings.ToValidUTF8(string(rest), "\ufffd")
}

// Raw returns the writer below: for codes that move the cursor, and for data that must not change.
func Raw(w io.Writer) io.Writer {
	for {
		wrapped, ok := w.(interface{ Unwrap() io.Writer })
		if !ok {
			return w
		}
		w = wrapped.Unwrap()
	}
}

// SafeHTML shows characters that control text as escapes. In tags they stay as they are: there they are parts of values
// that the browser sends back.
func SafeHTML(html string) string {
	if !strings.ContainsFunc(html, func(r rune) bool { return controlsText(r) && r != '\n' && r != '\t' }) {
		return html
	}
	var b strings.Builder
	inTag := false
	for _, r := range html {
		switch {
		case r == '<' || r == '>': // the template escapes others
			inTag = r == '<'
			b.WriteRune(r)
		case r == '\n' || r == '\t' || !controlsText(r):
			b.WriteRune(r)
		case !inTag:
			b.Write(appendEscape(nil, r))
		case r >= 0x7f && r <= 0x9f: // a reference to one of these means another character
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "&#x%x;", r)
		}
	}
	return b.String()
}

// Redact removes passwords.
func Redact(text []byte) []byte { return secret.Redact(text) }

// IsTerminal reports whether a stream is a terminal, also below writers that have Unwrap.
func IsTerminal(stream any) bool {
	if out, ok := stream.(io.Writer); ok {
		stream = Raw(out)
	}
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
