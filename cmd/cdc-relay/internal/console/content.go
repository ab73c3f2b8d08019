package console

import (
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// content is a part of a message that is shown as it is: headers, properties, body.
type content struct {
	Name, Note, Text string
	// Tree is the same as JSON that folds; nil: it is no object or array, or a large one.
	Tree *node
}

// contentsOf returns the parts that may be shown, and their names among the facts.
func contentsOf(m operator.Message) (all []content, names []string) {
	v := show.MessageOf(m)
	add := func(name, fact, note string, text []byte) {
		if text != nil {
			all, names = append(all, content{
				name, note, string(text), treeOf(string(m.State)+"-"+fact, text),
			}), append(names, fact)
		}
	}
	add("Headers", "headers", "", v.Headers)
	add("Properties", "properties", "", v.Properties)
	note := ""
	if m.IsRedacted {
		note = "redacted"
	}
	add("Body", "payload", note, v.Payload)
	if v.PayloadBase64 != nil {
		add("Body", "payload", "base64", []byte(*v.PayloadBase64))
	}
	return all, names
}
