package terminal

import (
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// Progress shows a progress bar on Err if that is a terminal, and more than few rows change. update takes how many rows
// of how many are changed; end removes the bar.
func (t Terminal) Progress(what string, few int64) (update func(done, total int64), end func()) {
	if !show.IsTerminal(t.Err) {
		return func(int64, int64) {}, func() {}
	}
	var bar *progressbar.ProgressBar
	update = func(done, total int64) {
		if total <= few {
			return // the work was too quick to show a bar
		}
		if bar == nil {
			bar = progressbar.NewOptions64(
				total,
				progressbar.OptionSetWriter(show.Raw(t.Err)),
				progressbar.OptionSetDescription(what),
				progressbar.OptionShowCount(),
				progressbar.OptionShowIts(),
				progressbar.OptionSetItsString("rows"),
				progressbar.OptionSetPredictTime(true),
				progressbar.OptionClearOnFinish(),
				progressbar.OptionThrottle(100*time.Millisecond),
			)
		}
		_ = bar.Set64(done) // an error of the terminal must not stop the work
	}
	end = func() {
		if bar != nil {
			_ = bar.Clear()
		}
	}
	return update, end
}
