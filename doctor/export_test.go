package doctor

import "time"

// SetPatience is for tests with servers that do not answer.
func (o *Options) SetPatience(patience time.Duration) { o.patience = patience }
