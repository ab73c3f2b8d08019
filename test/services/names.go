package services

import (
	crand "crypto/rand"
	"strings"
)

// cookie returns a secret for one broker and its tools.
func cookie() string { return crand.Text() }

// uniqueName returns a valid name for a database, slot, publication, virtual host or queue: [a-z][a-z0-9_]{0,62}.
func uniqueName(hint string) string {
	var name strings.Builder
	name.WriteString("t_")
	for _, char := range strings.ToLower(hint) {
		if name.Len() == 36 {
			break
		}
		if char >= 'a' && char <= 'z' || char >= '0' && char <= '9' {
			name.WriteRune(char)
		} else {
			name.WriteByte('_')
		}
	}
	name.WriteByte('_')
	name.WriteString(strings.ToLower(crand.Text()[:16]))
	return name.String()
}
