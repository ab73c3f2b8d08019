package doctor

import "time"

// SetTimeout is for tests with servers that do not answer.
func (o *Options) SetTimeout(timeout time.Duration) { o.timeout = timeout }
