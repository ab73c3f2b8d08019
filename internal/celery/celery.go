// Package celery hides the headers in which Celery repeats the arguments of a task.
package celery

import (
	"bytes"
	"encoding/json"
	"io"
)

// HiddenValue stands for the value of a header that repeats the body.
const HiddenValue = "(hidden)"

// RepeatsBody reports whether a header repeats the body as text, as argsrepr and kwargsrepr of Celery do with the
// arguments of a task. Views and logs show such a header only where they show the body.
func RepeatsBody(header string) bool { return header == "argsrepr" || header == "kwargsrepr" }

// HideBody returns headers, a JSON object, with HiddenValue for each value that repeats the body. Such a header may
// also be inside another one: a task that Celery retries carries its former headers.
func HideBody(headers []byte) []byte {
	if !bytes.Contains(headers, []byte("argsrepr")) && !bytes.Contains(headers, []byte(`\u`)) { // a name may be escaped
		return headers
	}
	hidden, err := hideBody(headers)
	if err != nil { // such as JSON that is nested too deep
		hidden, _ = json.Marshal(HiddenValue)
	}
	return hidden
}

// level is an open object or array of JSON.
type level struct {
	object bool
	tokens int
}

// hideBody copies JSON token by token, so that its depth costs nothing.
func hideBody(text []byte) ([]byte, error) {
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber()
	var out bytes.Buffer
	var open []level
	for {
		token, err := in.Token()
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		if delimiter, ends := token.(json.Delim); ends && (delimiter == '}' || delimiter == ']') {
			out.WriteByte(byte(delimiter))
			open = open[:len(open)-1]
			continue
		}
		named := false
		if len(open) > 0 {
			here := &open[len(open)-1]
			named = here.object && here.tokens%2 == 0
			switch {
			case here.object && !named:
				out.WriteString(": ")
			case here.tokens > 0:
				out.WriteString(", ")
			}
			here.tokens++
		}
		if delimiter, begins := token.(json.Delim); begins {
			out.WriteByte(byte(delimiter))
			open = append(open, level{object: delimiter == '{'})
			continue
		}
		value, err := json.Marshal(token)
		if err != nil {
			return nil, err
		}
		out.Write(value)
		if name, _ := token.(string); named && RepeatsBody(name) {
			if err := in.Decode(new(json.RawMessage)); err != nil {
				return nil, err
			}
			value, _ := json.Marshal(HiddenValue)
			out.WriteString(": ")
			out.Write(value)
			open[len(open)-1].tokens++
		}
	}
}
