package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// node is a value in JSON.
type node struct {
	// Name is that of the value in an object, in quotes; "": it has none.
	Name string
	// Text is the value. Objects and arrays have brackets, Text and Close, and the Nodes between them.
	Text, Close string
	Nodes       []node
	// ID names an object or array on the page. Open: it is not folded.
	ID   string
	Open bool
}

// What has more than mostNodes, or is deeper than mostDepth, is shown as it is. From openDepth on, nodes are folded.
const (
	mostNodes = 2000
	mostDepth = 50
	openDepth = 3
)

var errLarge = errors.New("this tree is large")

// treeOf returns nil if the text is no JSON object or array, or a large one. The ids of nodes begin with a prefix.
func treeOf(prefix string, text []byte) *node {
	t := tree{Decoder: json.NewDecoder(bytes.NewReader(text)), prefix: prefix}
	t.UseNumber()
	root, err := t.node("", 0)
	if err != nil || root.Close == "" || !json.Valid(text) {
		return nil
	}
	return &root
}

// tree reads nodes.
type tree struct {
	*json.Decoder
	prefix string
	nodes  int
}

// node reads the next value.
func (t *tree) node(name string, depth int) (node, error) {
	if t.nodes++; t.nodes > mostNodes || depth > mostDepth {
		return node{}, errLarge
	}
	token, err := t.Token()
	if err != nil {
		return node{}, err
	}
	opens, isDelim := token.(json.Delim)
	if !isDelim {
		return node{Name: name, Text: inJSON(token)}, nil
	}
	n := node{Name: name, Text: opens.String(), ID: fmt.Sprintf("%s-%d", t.prefix, t.nodes), Open: depth < openDepth}
	for t.More() {
		inner := ""
		if opens == '{' {
			if token, err = t.Token(); err != nil {
				return node{}, err
			}
			inner = inJSON(token)
		}
		one, err := t.node(inner, depth+1)
		if err != nil {
			return node{}, err
		}
		n.Nodes = append(n.Nodes, one)
	}
	token, err = t.Token()
	n.Close = fmt.Sprint(token)
	return n, err
}

// inJSON returns a name, a string, a number, a boolean or null as JSON.
func inJSON(token json.Token) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(token) // tokens are values in JSON
	return strings.TrimSuffix(b.String(), "\n")
}
