package bench

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// hardware describes processor and memory, from /proc.
func hardware() (text string) {
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return ""
	}
	if cores, err := system.CPUInfo(); err == nil && len(cores) > 0 {
		text += ", " + cores[0].ModelName
	}
	if memory, err := system.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		text += fmt.Sprintf(", %d GB", *memory.MemTotalBytes>>30)
	}
	return text
}
