package doctor

import (
	"fmt"
	"strings"
)

// Summary counts the findings of each level: "1 problem, 2 warnings, 30 ok".
func Summary(findings []Finding) string {
	counts := map[Level]int{}
	for _, f := range findings {
		counts[f.Level]++
	}
	var parts []string
	for _, level := range []Level{Problem, Warning} {
		if n := counts[level]; n > 0 {
			parts = append(parts, counted(n, string(level), string(level)+"s"))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d ok", counts[OK])), ", ")
}
