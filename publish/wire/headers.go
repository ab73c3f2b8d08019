package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The library writes any headers, but closes the connection when it reads deeper or larger ones. It reads the headers
// of every returned message.
const (
	// deepestHeader is how deeply arrays and tables may be nested.
	deepestHeader = 32
	// mostElements is the most elements of an array or a table.
	mostElements = 8192
	// mostHeaders leaves room in the headers table for x-possible-duplicate, and for headers of RabbitMQ's message
	// interceptors.
	mostHeaders = mostElements - 8
)

// parseHeaders reads a JSON object. Integers become int64, and numbers with a fraction or an exponent float64. The last
// value of a repeated key counts, as in jsonb.
func parseHeaders(raw []byte) (map[string]any, error) {
	object, err := parseObject(raw)
	if err != nil {
		return nil, badHeader("headers", err.Error())
	}
	if len(object) > mostHeaders {
		return nil, badHeader("headers", fmt.Sprintf("has %d keys, the most are %d", len(object), mostHeaders))
	}
	if err := checkTable("headers", object, 1); err != nil {
		return nil, err
	}
	for _, name := range [...]string{"CC", "BCC"} {
		if value, ok := object[name]; ok && !isStrings(value) {
			return nil, badHeader("headers."+name, "RabbitMQ expects an array of strings, the further routing keys")
		}
	}
	return object, nil
}

func isStrings(value any) bool {
	list, ok := value.([]any)
	if !ok {
		return false
	}
	for _, element := range list {
		if _, ok := element.(string); !ok {
			return false
		}
	}
	return true
}

// parseObject reads exactly one JSON object; numbers stay as written.
func parseObject(raw []byte) (map[string]any, error) {
	if !utf8.Valid(raw) { // possible in a database with the encoding SQL_ASCII; the JSON decoder would replace it
		return nil, errors.New("must be UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	err := decoder.Decode(&object)
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other):
		return nil, fmt.Errorf("must be a JSON object, not JSON %s", other.Value)
	case err != nil:
		return nil, fmt.Errorf("must be a JSON object: %w", err)
	case object == nil:
		return nil, errors.New("must be a JSON object, not JSON null")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("has something after the JSON object")
	}
	return object, nil
}

// checkTable checks an object, and replaces its numbers.
func checkTable(path string, object map[string]any, depth int) error {
	for key, value := range object {
		if len(key) > LongestShortString {
			return badHeader(path, fmt.Sprintf("the key %.20q... has %d bytes, must have at most %d",
				key, len(key), LongestShortString))
		}
		field, err := checkField(path+"."+key, value, depth)
		if err != nil {
			return err
		}
		object[key] = field
	}
	return nil
}

// checkField checks one value, and returns it with numbers in place of their digits. Path is its place, for errors.
func checkField(path string, value any, depth int) (any, error) {
	switch v := value.(type) {
	case json.Number:
		return headerNumber(path, v.String())
	case map[string]any:
		if err := checkContainer(path, len(v), depth); err != nil {
			return nil, err
		}
		return v, checkTable(path, v, depth+1)
	case []any:
		if err := checkContainer(path, len(v), depth); err != nil {
			return nil, err
		}
		for i, element := range v {
			field, err := checkField(path+"["+strconv.Itoa(i)+"]", element, depth+1)
			if err != nil {
				return nil, err
			}
			v[i] = field
		}
	}
	return value, nil // nil, bool, string, or a list
}

func checkContainer(path string, elements, depth int) error {
	if depth > deepestHeader {
		return badHeader(path, fmt.Sprintf("is nested deeper than %d levels", deepestHeader))
	}
	if elements > mostElements {
		return badHeader(path, fmt.Sprintf("has %d elements, the most are %d", elements, mostElements))
	}
	return nil
}

func headerNumber(path, digits string) (any, error) {
	if strings.ContainsAny(digits, ".eE") {
		f, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return nil, badHeader(path, fmt.Sprintf("%.40s does not fit a 64-bit floating-point number", digits))
		}
		return f, nil
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		const what = "%.40s does not fit a signed 64-bit integer; send it as a string"
		return nil, badHeader(path, fmt.Sprintf(what, digits))
	}
	return n, nil
}

func badHeader(path, what string) error {
	const longest = 300
	if len(path) > longest {
		path = strings.ToValidUTF8(path[:longest], "") + "..."
	}
	return &invalid{outbox.ReasonInvalidHeaders, path + ": " + what}
}
