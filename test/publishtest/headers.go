package publishtest

import (
	"encoding/json"
	"strconv"
	"strings"
)

// NestedHeaders returns a header of nested arrays and tables.
func NestedHeaders(levels int) string {
	var text, end strings.Builder
	for i := range levels {
		if i%2 == 0 {
			text.WriteString("[")
		} else {
			text.WriteString(`{"a":`)
		}
	}
	for i := levels - 1; i >= 0; i-- {
		end.WriteString([]string{"]", "}"}[i%2])
	}
	return `{"deep": ` + text.String() + "1" + end.String() + "}"
}

// ManyHeaders returns a JSON object with short keys.
func ManyHeaders(keys int) []byte {
	object := make(map[string]any, keys)
	for i := range keys {
		object[strconv.FormatInt(int64(i), 36)] = nil
	}
	text, _ := json.Marshal(object)
	return text
}
